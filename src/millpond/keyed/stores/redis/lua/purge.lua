-- Drop the jobs of a key that no worker has, delayed ones included.   ARGV: skew, slot, mailbox.   Result: {how many}.

local slot, mailbox = ARGV[2], ARGV[3]
local box, taken = P .. 'mb:' .. mailbox, taken_of(slot, mailbox)
local jobs = call('LRANGE', box, taken, -1)
if #jobs > 0 then
  if taken > 0 then
    call('LTRIM', box, 0, taken - 1)
  else
    call('DEL', box)
    leave_place(slot, mailbox)
    forget(mailbox)
  end
  if sub(mailbox, 1, 1) == 'j' then count('jobs', -#jobs) end
  for _, job in ipairs(jobs) do conclude_job(job, 'purged') end
end
local purged = #jobs
local delayed = call('HGETALL', P .. 'delayed')
for i = 1, #delayed, 2 do
  local job = cmsgpack.unpack(delayed[i + 1])
  if job[3] == mailbox then
    forgo('delayed', delayed[i])
    conclude_job(stamp .. job[4], 'purged')
    purged = purged + 1
  end
end
finish()
return {whole(purged)}
