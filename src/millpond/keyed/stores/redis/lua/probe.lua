-- Try every command that the scripts of a pool use: one that is forbidden would end a script in its middle, and what it
-- had written until then would stay. HDEL first: it is allowed when the server is full.
-- KEYS[1] as ever.   Result: {what the server said to the first that failed}, or {}.

local P = KEYS[1] .. 'probe:'
local h, l, s, z, k = P .. 'h', P .. 'l', P .. 's', P .. 'z', P .. 'k'
local tries = {
  {'HDEL', h, 'f'}, {'TIME'}, {'HSET', h, 'f', '1'}, {'HGET', h, 'f'}, {'HMGET', h, 'f'}, {'HINCRBY', h, 'f', 1},
  {'HLEN', h}, {'HKEYS', h},
  {'HVALS', h}, {'HGETALL', h}, {'HEXISTS', h, 'f'}, {'RPUSH', l, '1'}, {'LPUSH', l, '2'}, {'LLEN', l},
  {'LRANGE', l, 0, -1}, {'LINDEX', l, 0}, {'LPOS', l, '1'}, {'LREM', l, 1, '1'}, {'LTRIM', l, 0, 0}, {'LPOP', l, 1},
  {'SADD', s, '1'}, {'SISMEMBER', s, '1'}, {'SRANDMEMBER', s, 1}, {'SMEMBERS', s},
  {'SREM', s, '1'}, {'ZADD', z, 1, '1'}, {'ZSCORE', z, '1'},
  {'ZRANGE', z, 0, 0}, {'ZRANGEBYSCORE', z, 0, 1}, {'ZREVRANGEBYSCORE', z, 1, 0}, {'ZRANK', z, '1'}, {'ZCOUNT', z, 0, 1},
  {'ZREM', z, '1'}, {'SET', k, '1', 'PX', 1000}, {'GET', k}, {'EXISTS', k},
  {'DEL', k}, {'UNLINK', h, l, s, z, k}, {'PUBLISH', KEYS[1] .. 'to:probe', ''},
}
for _, try in ipairs(tries) do
  local answer = redis.pcall(unpack(try))
  if type(answer) == 'table' and answer.err then return {try[1] .. ': ' .. answer.err} end
end
return {}
