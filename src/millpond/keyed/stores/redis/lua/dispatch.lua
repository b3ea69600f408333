-- Put plain jobs into their mailboxes, in order. The same batch again is only answered again, an older one ignored.
-- ARGV: skew, producer, number of its batch, {slot, mailbox, body}...
-- Result: {index, verdict, ...} of those that are not in.
-- One command for a job whose mailbox has others, two for one that wakes its key up.

local limits = call('HMGET', META, 'max_jobs', 'max_per_key')
local max_jobs, max_per_key = tonumber(limits[1]), tonumber(limits[2])
local verdicts, dispatched, jobs = {}, 0, 0
is_small = #ARGV <= 3 + 3 * HANDED
if not is_shut and max_jobs == 0 and max_per_key == 0 then
  local boxes = P .. 'mb:'
  for i = 4, #ARGV, 3 do
    local mailbox = ARGV[i + 1]
    local length = call('RPUSH', boxes .. mailbox, stamp .. ARGV[i + 2])
    if length == 1 and not hand_over(ARGV[i], mailbox, stamp .. ARGV[i + 2]) then ready(ARGV[i], mailbox) end
    if sub(mailbox, 1, 1) == 'j' then jobs = jobs + 1 elseif length == 1 then count('residents', 1) end
  end
  dispatched = (#ARGV - 3) / 3
else
  local refused = {}
  local there = max_jobs > 0 and tonumber(call('HGET', META, 'jobs')) + call('HLEN', P .. 'delayed') or 0
  for i = 4, #ARGV, 3 do
    local mailbox, verdict = ARGV[i + 1], nil
    if is_shut then verdict = 'closed'
    elseif refused[mailbox] then verdict = 'full' -- what came before it is not in, so neither is this
    elseif max_jobs > 0 and there + jobs >= max_jobs then verdict = 'pool'
    elseif max_per_key > 0 and call('LLEN', P .. 'mb:' .. mailbox) >= max_per_key then verdict = 'full'
    end
    if verdict then
      verdicts[#verdicts + 1] = (i - 4) / 3
      verdicts[#verdicts + 1] = verdict
      refused[mailbox] = true
    else
      local length = call('RPUSH', P .. 'mb:' .. mailbox, stamp .. ARGV[i + 2])
      if length == 1 and not hand_over(ARGV[i], mailbox, stamp .. ARGV[i + 2]) then ready(ARGV[i], mailbox) end
      if sub(mailbox, 1, 1) == 'j' then jobs = jobs + 1 elseif length == 1 then count('residents', 1) end
      dispatched = dispatched + 1
    end
  end
end
count('jobs', jobs)
count('dispatched', dispatched)
remember_batch(verdicts)
finish()
return verdicts
