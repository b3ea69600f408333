-- Let a worker take part.   ARGV: skew, worker, about (packed {label, weight, concurrency, names}).   Result: a beat.

local me = ARGV[2]
local lease = whole(now + setting('lease'))
if call('ZSCORE', P .. 'members', me) == false then
  call('ZADD', P .. 'members', call('HINCRBY', META, 'last_member', 1), me)
end
call('HSET', P .. 'w:' .. me, 'about', ARGV[3], 'joined', whole(now), 'lease', lease, 'leaving', '0', 'call', '0',
  'spare', '0')
call('HDEL', P .. 'w:' .. me, 'gone')
changed()
finish()
return beat()
