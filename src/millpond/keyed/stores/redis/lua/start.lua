-- Let a resident run.   ARGV: skew, slot, mailbox, body.   Result: {started, replaced, same or closed}.

local slot, mailbox, job = ARGV[2], ARGV[3], stamp .. ARGV[4]
if is_shut then return {'closed'} end
local box = P .. 'mb:' .. mailbox
local last = call('LINDEX', box, -1)
if not last then
  enter(slot, mailbox, job)
  finish()
  return {'started'}
end
last = opened(last)
if last[5] == opened(job)[5] and call('SISMEMBER', P .. 'cancelled', last[1]) == 0 then return {'same'} end
if taken_of(slot, mailbox) > 0 then
  cancel_resident(slot, mailbox)
  call('RPUSH', box, job)
else
  leave_place(slot, mailbox)
  pop(mailbox, call('LLEN', box))
  enter(slot, mailbox, job)
end
finish()
return {'replaced'}
