-- Drop jobs of a key that no worker has, the newest first, then delayed ones.   ARGV: skew, slot, mailbox, how many at most.
-- Result: {how many}.

local slot, mailbox, most = ARGV[2], ARGV[3], tonumber(ARGV[4])
local box, taken = P .. 'mb:' .. mailbox, taken_of(slot, mailbox)
local length = call('LLEN', box)
local purged = math.min(most, length - taken)
if purged > 0 then
  local left = length - purged
  for first = left, length - 1, 100 do
    for _, job in ipairs(call('LRANGE', box, first, math.min(first + 99, length - 1))) do conclude_job(job, 'purged') end
  end
  if left > 0 then
    call('LTRIM', box, 0, left - 1)
  else
    call('DEL', box)
    leave_place(slot, mailbox)
    forget(mailbox)
  end
  if sub(mailbox, 1, 1) == 'j' then count('jobs', -purged) elseif left == 0 then count('residents', -1) end
end
if purged < most then
  for _, id in ipairs(call('SRANDMEMBER', P .. 'dl:' .. mailbox, most - purged)) do
    local job = remove_entry('delayed', id)
    if job then
      conclude_job(stamp .. job[4], 'purged')
      purged = purged + 1
    end
  end
end
finish()
return {whole(purged)}
