-- End a resident.   ARGV: skew, slot, mailbox.   Result: {stopped, stopping or gone}.

local slot, mailbox = ARGV[2], ARGV[3]
local box = P .. 'mb:' .. mailbox
if call('EXISTS', box) == 0 then return {'gone'} end
local answer = 'stopping'
if taken_of(slot, mailbox) > 0 then
  cancel_resident(slot, mailbox)
else
  leave_place(slot, mailbox)
  pop(mailbox, call('LLEN', box))
  forget(mailbox)
  answer = 'stopped'
end
finish()
return {answer}
