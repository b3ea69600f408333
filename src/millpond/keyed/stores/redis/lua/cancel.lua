-- Take a job back.   ARGV: skew, slot, mailbox, id.   Result: {cancelled, asked or gone}.

local slot, mailbox, id = ARGV[2], ARGV[3], ARGV[4]
local answer = 'cancelled'
if call('SISMEMBER', P .. 'dl:' .. mailbox, id) == 1 then
  conclude_job(stamp .. forgo('delayed', id)[4], 'cancelled')
else
  local index, job = find(mailbox, id)
  if not index then return {'gone'} end
  if index < taken_of(slot, mailbox) then
    call('SADD', P .. 'doomed', id)
    signal(run_of(slot, mailbox).worker, 'cancel', mailbox, id, 0, '')
    answer = 'asked'
  else
    remove(slot, mailbox, job, 'cancelled')
  end
end
finish()
return {answer}
