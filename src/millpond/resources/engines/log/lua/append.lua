-- Append an item, remove what it took from the inbox, give hints.
-- KEYS   meta, log, inbox, snapshot of one pool.
-- ARGV   epoch, tip on which the item was decided, seq of the item (0: there is none, only the gate is confirmed), tip
--        of the item, body, parcels taken from the inbox, snapshot ('': none), items to keep when there is one, prefix
--        of channels, name of the pool, sessions to give a hint to…
-- Result {1, now, inbox}, or {0, now} when the gate is lost or the log has moved on: then nothing was changed.
-- Keeps  an item is appended once, by who has the gate, on top of the item it was decided on.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local told = string.format('%.0f', now)
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'tip')
if meta[1] ~= ARGV[1] or (meta[2] or '') ~= ARGV[2] then return {0, told} end

if ARGV[3] ~= '0' then
  redis.call('XADD', KEYS[2], ARGV[3] .. '-0', 't', ARGV[4], 'b', ARGV[5])
  redis.call('HSET', KEYS[1], 'seq', ARGV[3], 'tip', ARGV[4], 'active', told)
  if ARGV[7] ~= '' then
    redis.call('SET', KEYS[4], ARGV[7])
    redis.call('HSET', KEYS[1], 'base', ARGV[3])
    redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f', math.max(0, tonumber(ARGV[3]) - tonumber(ARGV[8]) + 1)))
  end
  redis.call('PUBLISH', ARGV[9] .. 'all:' .. ARGV[10], ARGV[10])
else
  redis.call('HSET', KEYS[1], 'active', told)
end
local taken = tonumber(ARGV[6])
if taken > 0 then redis.call('LTRIM', KEYS[3], taken, -1) end
for index = 11, #ARGV do redis.call('PUBLISH', ARGV[9] .. 'to:' .. ARGV[index], ARGV[10]) end
return {1, told, redis.call('LRANGE', KEYS[3], 0, 999)}
