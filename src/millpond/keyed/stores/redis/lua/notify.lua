-- Leave a message for a resident.   ARGV: skew, slot, mailbox, data.   Result: {sent, full or gone}.

local slot, mailbox, data = ARGV[2], ARGV[3], ARGV[4]
local last = call('LINDEX', P .. 'mb:' .. mailbox, -1)
if not last or call('SISMEMBER', P .. 'cancelled', opened(last)[1]) == 1 then return {'gone'} end
local most = setting('max_per_key')
if most > 0 and call('LLEN', P .. 'msg:' .. mailbox) >= most then return {'full'} end
local number = call('HINCRBY', META, 'last_message', 1)
call('SADD', P .. 'messages', mailbox)
call('RPUSH', P .. 'msg:' .. mailbox, whole(number) .. ':' .. data)
local run = run_of(slot, mailbox)
if run and call('LLEN', P .. 'mb:' .. mailbox) == 1 then -- else it is for the one that replaces what runs
  signal(run.worker, 'note', mailbox, '', number, data)
end
finish()
return {'sent'}
