-- Take note that the process of a worker has ended: nobody has to wait until its lease is over.   ARGV: skew, worker.
-- Result: {1}, or {}: it is no member.

local key = P .. 'w:' .. ARGV[2]
if call('EXISTS', key) == 0 then return {} end
call('HSET', key, 'gone', '1')
changed()
finish()
return {1}
