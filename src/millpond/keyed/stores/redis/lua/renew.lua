-- Prolong the lease of a worker.   ARGV: skew, worker, 1 if it is leaving, version of the members that it knows.
-- Result: a beat, a brief one if they are the same; or {}: it is no member.

local key = P .. 'w:' .. ARGV[2]
local was = call('HMGET', key, 'lease', 'leaving')
if not was[1] then return {} end
call('HSET', key, 'lease', whole(now + setting('lease')))
if ARGV[3] == '1' and was[2] == '0' then
  call('HSET', key, 'leaving', '1')
  changed()
  version = ''
end
finish()
return beat(version == ARGV[4])
