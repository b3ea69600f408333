-- Make the pool, or find it.   KEYS[1]: what its keys begin with.
-- ARGV: format, incarnation, settings as they are given back, {field, value} that scripts read...
-- Result: {settings, incarnation, format}; {}: it is being dropped.

local meta = KEYS[1] .. 'meta'
local found = redis.call('HMGET', meta, 'settings', 'incarnation', 'format')
if found[3] == 'dropped' then return {found[2]} end
if found[3] then return found end
redis.call('HSET', meta, 'format', ARGV[1], 'incarnation', ARGV[2], 'settings', ARGV[3], 'version', '1', 'shut', '0',
  'paused', '0', 'token', '0', 'jobs', '0', 'ready', '0', 'running', '0', 'residents', '0',
  'dispatched', '0', 'done', '0', 'retried', '0', 'dead_total', '0', 'recovered', '0', 'moved', '0', unpack(ARGV, 4))
return {ARGV[3], ARGV[2], ARGV[1]}
