-- The same as `dispatch`, for batches in which an order is special.
-- ARGV: skew, producer, number of its batch, {slot, mailbox, body, id, name, delay, at, on_busy, unique_for}...  (id '': it is plain)
-- Result: {index, verdict, ...} of those of which there is something to say.

-- Return the waiting jobs of a mailbox with this name that are not cancelled, in order; only the last one if `last`.
local function is_alike(job, name)
  local one = opened(job)
  return one[2] == name and not (has('cancelled') and call('SISMEMBER', P .. 'cancelled', one[1]) == 1)
end

local function alike(box, taken, name, last)
  local found, high = {}, call('LLEN', box) - 1
  if last then
    while high >= taken do
      local low = math.max(taken, high - 99)
      local jobs = call('LRANGE', box, low, high)
      for j = #jobs, 1, -1 do
        if is_alike(jobs[j], name) then return {jobs[j]} end
      end
      high = low - 1
    end
    return found
  end
  for _, job in ipairs(call('LRANGE', box, taken, -1)) do
    if is_alike(job, name) then found[#found + 1] = job end
  end
  return found
end

local max_jobs, max_per_key = setting('max_jobs'), setting('max_per_key')
local there = tonumber(call('HGET', META, 'jobs'))

local function verdict_on(slot, mailbox, body, id, name, delay, at, on_busy, unique_for)
  local box = P .. 'mb:' .. mailbox
  if unique_for > 0 then
    local until_then = call('GET', P .. 'uniq:' .. id)
    if until_then and tonumber(until_then) > now then return 'same' end
  end
  if id ~= '' and call('HEXISTS', P .. 'delayed', id) == 1 then return 'same' end
  local replaced = 0
  if on_busy ~= 'queue' and call('EXISTS', box) == 1 then
    if on_busy == 'reject' then return 'busy' end
    local found = alike(box, taken_of(slot, mailbox), name, on_busy == 'coalesce')
    if on_busy == 'coalesce' then
      if found[1] then return 'into:' .. opened(found[1])[1] end
    else
      for _, job in ipairs(found) do remove(slot, mailbox, job, 'replaced') end
      replaced = #found
    end
  end
  if replaced == 0 then -- else there is room
    if max_jobs > 0 and there + (tally.jobs or 0) + call('HLEN', P .. 'delayed') >= max_jobs then return 'pool' end
    if max_per_key > 0 and call('LLEN', box) >= max_per_key then return 'full' end
  end
  count('dispatched', 1)
  if unique_for > 0 then
    local until_then = string.format('%016.0f', now + unique_for)
    call('SET', P .. 'uniq:' .. id, until_then, 'PX', whole(math.ceil(unique_for / 1000)))
  end
  local due = at > 0 and at or now + delay
  if id ~= '' and due > now then
    call('HSET', P .. 'delayed', id, cmsgpack.pack({slot, remember(due, 'd' .. id), mailbox, body}))
    call('SADD', P .. 'dl:' .. mailbox, id)
    local owner = owner_of(slot)
    if owner then hint(owner) end -- so that it knows when to look
  else
    enter(slot, mailbox, stamp .. body, hand_over)
  end
end

local verdicts, refused = {}, {}
is_small = #ARGV <= 3 + 9 * HANDED
for i = 4, #ARGV, 9 do
  local mailbox, verdict = ARGV[i + 1], nil
  if is_shut then verdict = 'closed'
  elseif refused[mailbox] then verdict = 'full' -- what came before it is not in, so neither is this
  else
    verdict = verdict_on(ARGV[i], mailbox, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], tonumber(ARGV[i + 5]),
      tonumber(ARGV[i + 6]), ARGV[i + 7], tonumber(ARGV[i + 8]))
  end
  if verdict then
    verdicts[#verdicts + 1] = (i - 4) / 9
    verdicts[#verdicts + 1] = verdict
    if verdict == 'full' or verdict == 'pool' then refused[mailbox] = true end
  end
end
remember_batch(verdicts)
finish()
return verdicts
