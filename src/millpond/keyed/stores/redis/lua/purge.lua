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
  if sub(mailbox, 1, 1) == 'j' then count('jobs', -#jobs) elseif taken == 0 then count('residents', -1) end
  for _, job in ipairs(jobs) do conclude_job(job, 'purged') end
end
local purged = #jobs
for _, id in ipairs(call('SMEMBERS', P .. 'dl:' .. mailbox)) do
  local job = forgo('delayed', id)
  if job then
    conclude_job(stamp .. job[4], 'purged')
    purged = purged + 1
  end
end
finish()
return {whole(purged)}
