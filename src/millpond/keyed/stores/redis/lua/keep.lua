-- Prolong the lease of a worker whose process computes and cannot do so itself.   ARGV: skew, worker.
-- Result: {1}, or {}: it is no member.

local key = P .. 'w:' .. ARGV[2]
local was = call('HMGET', key, 'lease', 'gone')
if not was[1] or was[2] then return {} end
call('HSET', key, 'lease', whole(now + setting('lease')))
return {1}
