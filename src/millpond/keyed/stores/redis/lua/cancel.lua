-- Take a job back.   ARGV: skew, slot, mailbox, id, where to search on or ''.
-- Result: {cancelled, asked or gone}, or {more, where to search on}.

local slot, mailbox, id = ARGV[2], ARGV[3], ARGV[4]
local answer = 'cancelled'
if call('SISMEMBER', P .. 'dl:' .. mailbox, id) == 1 then
  conclude_job(stamp .. remove_entry('delayed', id)[4], 'cancelled')
else
  local index, job, rest = find(mailbox, id, ARGV[5])
  if not index then return rest and {'more', rest} or {'gone'} end
  if index < taken_of(slot, mailbox) then
    call('SADD', P .. 'cancelled', id)
    signal(run_of(slot, mailbox).worker, 'cancel', mailbox, id, 0, '')
    answer = 'asked'
  else
    remove(slot, mailbox, job, 'cancelled')
  end
end
finish()
return {answer}
