-- Settle what has ended, let happen what is due, and take more.
-- ARGV: skew, worker, call, want, per, want_residents, heard, spare, settles, then for each settle
--   slot, mailbox, token, done, how, outcomes; where outcomes is not '' but their number, there follow
--   delay, failures, reason, notes, {id, status, data, keep, reply}...
-- Result: {stale indexes, token, takes, signals, gone, more, due, now, version}; takes: {slot, mailbox, jobs, 0 or
--   {failures, losses, notes}, ...}.
-- A settle names its take by the token and counts finished jobs from its start: twice is as good as once, and a late one
-- changes nothing. A call takes only if it is later than the last of its worker.

local me, number, want, per = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local KEYS_PER_TURN, DUE_PER_CALL, TAKE_BYTES = 8, 100, 4194304

-- Do what is to happen to the first job of a mailbox that does not run any more.
local function end_take(slot, mailbox, left, how, delay, failures, reason)
  if (how == 'retry' or how == 'park') and has('cancelled') then
    local id = opened(call('LINDEX', P .. 'mb:' .. mailbox, 0))[1]
    if call('SISMEMBER', P .. 'cancelled', id) == 1 then how = 'end' end -- it will not be tried again
  end
  if how == 'retry' then
    count('retried', 1)
    local _, losses, deaths = failures_of(mailbox)
    set_failures(mailbox, failures, losses, deaths, sub(reason, 1, 1000))
    call('HSET', P .. 'retry', mailbox, cmsgpack.pack({slot, remember(now + delay, 'r' .. mailbox)}))
  elseif how == 'park' then
    local member = remember(now + setting('unknown'), 'p' .. mailbox)
    call('HSET', P .. 'parked', mailbox, cmsgpack.pack({slot, member, reason}))
    call('SADD', P .. 'parked:' .. sub(mailbox, 1, 1) .. ':' .. reason, mailbox)
    used.parked = true
    hint_all() -- somebody may know it
  else
    if how == 'to_dead_letters' then left = to_dead_letters(slot, mailbox, reason, nil, 1) end
    go_on(slot, mailbox, left)
  end
end

-- Takes as they are, by slot and mailbox: asked for once, for all settles of a slot that stand beside one another.
local known = {}
local function known_run(slot, mailbox, i)
  local runs = known[slot]
  if not runs then
    runs = {}
    known[slot] = runs
  end
  if runs[mailbox] == nil then
    local mailboxes = {}
    repeat
      mailboxes[#mailboxes + 1] = ARGV[i + 1]
      local is_long = ARGV[i + 5] ~= ''
      i = i + 6
    until is_long or ARGV[i] ~= slot
    local found = call('HMGET', P .. 'run:' .. slot, unpack(mailboxes))
    for j = 1, #mailboxes do
      if runs[mailboxes[j]] == nil then runs[mailboxes[j]] = found[j] end
    end
  end
  return runs[mailbox]
end

-- What settles left behind, to be removed in one command for many: takes by slot, and mailboxes.
local over, empty = {}, {}

-- Let a take end of which all was done and nothing is to be said; return whether it could.
local function end_plainly(slot, mailbox, many)
  local box = P .. 'mb:' .. mailbox
  local left = call('LLEN', box) - many
  if left < 0 then return false end
  if left == 0 then empty[#empty + 1] = box else call('LTRIM', box, many, -1) end
  local ended = over[slot]
  if ended then ended[#ended + 1] = mailbox else over[slot] = {mailbox} end
  if has('borrowed') then call('HDEL', P .. 'borrowed', mailbox) end
  clear_failures(mailbox)
  count('jobs', -many)
  count('done', many)
  count('running', -1)
  go_on(slot, mailbox, left)
  return true
end

local function remove_what_ended()
  for slot, mailboxes in pairs(over) do call('HDEL', P .. 'run:' .. slot, unpack(mailboxes)) end
  if #empty > 0 then call('DEL', unpack(empty)) end
end

-- Return whether the take was running, and where the next settle begins.
local function settle(i)
  local slot, mailbox, token, how, many = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 4], ARGV[i + 5]
  local next = many == '' and i + 6 or i + 10 + 5 * many
  local runs = P .. 'run:' .. slot
  local run = known_run(slot, mailbox, i)
  if not run or sub(run, 1, #token + 1) ~= token .. ':' then return false, next end
  local taken, was, rest = string.match(run, '^%d+:(%d+):(%d+):(.*)$')
  taken, was = tonumber(taken), tonumber(was)
  if many == '' and was < taken and tonumber(ARGV[i + 3]) >= taken and sub(mailbox, 1, 1) == 'j'
    and not has('cancelled') and end_plainly(slot, mailbox, taken - was) then
    known[slot][mailbox] = false
    return true, next
  end
  known[slot][mailbox] = nil -- it changes now
  local delay, failures, reason, notes = 0, 0, '', 0
  local is_refused = how == 'to_dead_letters' and are_dead_letters_full()
  if many ~= '' then
    delay, failures, reason, notes = tonumber(ARGV[i + 6]), tonumber(ARGV[i + 7]), ARGV[i + 8], tonumber(ARGV[i + 9])
    for j = i + 10, next - 1, 5 do
      if not (is_refused and ARGV[j + 1] == 'dead') then
        conclude(ARGV[j], ARGV[j + 1], ARGV[j + 2], tonumber(ARGV[j + 3]), ARGV[j + 4])
      end
    end
  end
  local left, popped = pop(mailbox, math.min(tonumber(ARGV[i + 3]), taken) - was)
  if popped > 0 and sub(mailbox, 1, 1) == 'j' then count('done', popped) end
  was = was + popped
  if notes > 0 and has('messages') then
    local list = P .. 'msg:' .. mailbox
    while true do
      local first = call('LINDEX', list, 0)
      if not first or tonumber(string.match(first, '^%d+')) > notes then break end
      call('LPOP', list)
    end
  end
  if was == taken then -- whatever it says: the job behind the last one of a take was never tried
    end_run(slot, mailbox)
    go_on(slot, mailbox, left)
  elseif how == 'keep' then
    if popped > 0 then call('HSET', runs, mailbox, token .. ':' .. taken .. ':' .. was .. ':' .. rest) end
  else
    end_run(slot, mailbox)
    end_take(slot, mailbox, left, is_refused and 'retry' or how, is_refused and DEAD_RETRY or delay, failures, reason)
  end
  return true, next
end

-- Let happen what is due; return when the next thing is, or 0.
local function tick()
  local due = P .. 'due'
  local first = call('ZRANGE', due, 0, 0, 'WITHSCORES')
  if not first[1] then return 0 end
  if tonumber(first[2]) > now then return first[2] end
  for _, what in ipairs(call('ZRANGEBYSCORE', due, '-inf', whole(now), 'LIMIT', 0, DUE_PER_CALL)) do
    local kind, name = sub(what, 17, 17), sub(what, 18)
    call('ZREM', due, what)
    if kind == 'r' then
      local entry = remove_entry('retry', name)
      if entry then try_again(entry[1], name) end
    elseif kind == 'd' then
      local entry = remove_entry('delayed', name)
      if entry then enter(entry[1], entry[3], stamp .. entry[4]) end
    elseif are_dead_letters_full() then
      local packed = call('HGET', P .. 'parked', name)
      if packed then
        local slot, _, unknown = unpack(cmsgpack.unpack(packed))
        call('HSET', P .. 'parked', name, cmsgpack.pack({slot, remember(now + DEAD_RETRY, 'p' .. name), unknown}))
      end
    else
      local entry = remove_entry('parked', name)
      if entry then go_on(entry[1], name, to_dead_letters(entry[1], name, 'no worker knows ' .. entry[3], 'dead')) end
    end
  end
  first = call('ZRANGE', due, 0, 0, 'WITHSCORES')
  return first[2] or 0
end

local token, takes, weight = '', {}, 0

-- Return the first jobs of a mailbox: one at least, fewer when they are large, none that is cancelled.
local function fitting(mailbox, many)
  local jobs = call('LRANGE', P .. 'mb:' .. mailbox, 0, many > 1 and many - 1 or 0)
  local size, is_watchful = 0, has('cancelled')
  for j = 1, #jobs do
    local larger = size + #jobs[j]
    if j > 1
      and (larger > TAKE_BYTES or is_watchful and call('SISMEMBER', P .. 'cancelled', opened(jobs[j])[1]) == 1) then
      for k = #jobs, j, -1 do jobs[k] = nil end
      break
    end
    size = larger
  end
  weight = weight + size
  return jobs
end

-- Take a mailbox in a pool where keys are paused, jobs cancelled or failed, or messages waiting; nil: it is not taken.
local function take_checked(slot, mailbox, many)
  while has('cancelled') do
    local job = call('LINDEX', P .. 'mb:' .. mailbox, 0)
    if not job or call('SISMEMBER', P .. 'cancelled', opened(job)[1]) == 0 then break end
    local left = pop(mailbox, 1)
    conclude_job(job, 'cancelled')
    if left == 0 then
      forget(mailbox)
      return nil
    end
  end
  if has('pauses') and call('HEXISTS', P .. 'pauses', key_of(mailbox)) == 1 then
    call('HSET', P .. 'paused', mailbox, slot)
    call('SADD', P .. 'pk:' .. key_of(mailbox), mailbox)
    return nil
  end
  local failures, losses = failures_of(mailbox)
  local jobs = fitting(mailbox, losses > 0 and 1 or many)
  local notes = {}
  if has('messages') then
    for _, note in ipairs(call('LRANGE', P .. 'msg:' .. mailbox, 0, -1)) do
      local colon = string.find(note, ':', 1, true)
      notes[#notes + 1] = sub(note, 1, colon - 1)
      notes[#notes + 1] = sub(note, colon + 1)
    end
  end
  if failures == 0 and losses == 0 and #notes == 0 then return jobs, 0 end
  return jobs, {failures, losses, notes}
end

-- Hand out mailboxes; return how many.
local function hand_out(slot, mailboxes, many, borrowed)
  local runs, got = {}, 0
  local needs_check = has('cancelled') or has('pauses') or has('failures') or has('messages')
  for j = 1, #mailboxes do
    local mailbox, jobs, extra = mailboxes[j], nil, 0
    if needs_check then jobs, extra = take_checked(slot, mailbox, many) else jobs = fitting(mailbox, many) end
    if jobs and jobs[1] then -- else it is paused, or nothing is left of it
      local n = #takes
      takes[n + 1], takes[n + 2], takes[n + 3], takes[n + 4] = slot, mailbox, jobs, extra
      n = #runs
      runs[n + 1], runs[n + 2] = mailbox, token .. ':' .. #jobs .. ':0:' .. borrowed .. ':' .. me
      got = got + 1
    end
  end
  if got > 0 then
    call('HSET', P .. 'run:' .. slot, unpack(runs))
    if sub(runs[1], 1, 1) == 'j' then count('running', got) end
    if borrowed == '1' then
      call('HSET', P .. 'borrowed', runs[1], slot)
      used.borrowed = true
    end
  end
  return got
end

local function take(lane, most, many, about)
  weight = 0
  local got, act, skip = 0, P .. 'act:' .. lane .. ':' .. me, 'skip:' .. lane .. ':' .. me
  while got < most and weight <= TAKE_BYTES do
    local slot = call('LPOP', act)
    if not slot then break end
    if listed[act] then listed[act][slot] = nil end
    if has(skip) then call('SREM', P .. skip, slot) end
    if owner_of(slot) == me then
      local list, turn = P .. 'rd:' .. lane .. ':' .. slot, math.min(KEYS_PER_TURN, most - got)
      local mailboxes = call('LPOP', list, turn)
      if mailboxes then
        if lane ~= 'r' then count('ready', -#mailboxes) end
        got = got + hand_out(slot, mailboxes, many, '0')
        if #mailboxes == turn and call('EXISTS', list) == 1 then call('RPUSH', act, slot) end
      end
    end
  end
  if got < most and has('parked') then
    local names = cmsgpack.unpack(about)[4]
    table.sort(names)
    for _, name in ipairs(names) do
      while got < most do
        local mailboxes = call('SRANDMEMBER', P .. 'parked:' .. lane .. ':' .. name, most - got)
        if #mailboxes == 0 then break end
        for _, mailbox in ipairs(mailboxes) do
          local packed = call('HGET', P .. 'parked', mailbox)
          if packed then
            local slot = cmsgpack.unpack(packed)[1]
            leave_place(slot, mailbox)
            got = got + hand_out(slot, {mailbox}, 1, '1')
          else -- nothing is left of it
            call('SREM', P .. 'parked:' .. lane .. ':' .. name, mailbox)
          end
        end
      end
    end
  end
end

-- Whether the suspect that this worker was handed last still runs here.
local function runs_suspect()
  local last = call('HGET', P .. 'w:' .. me, 'suspect')
  if not last then return false end
  local token, slot, mailbox = string.match(last, '^(%d+):(%d+):(.*)$')
  local run = run_of(slot, mailbox)
  return run and run.token == token
end

-- Take one suspect, unless another runs here: a job that kills its worker then is the only one that is dead for it.
local function take_suspect(about)
  if call('EXISTS', P .. 'act:s:' .. me) == 0 or runs_suspect() then return 0 end
  local before = #takes
  take('s', 1, 1, about)
  if #takes == before then return 0 end
  call('HSET', P .. 'w:' .. me, 'suspect', token .. ':' .. takes[before + 1] .. ':' .. takes[before + 2])
  return 1
end

local stale, i = {}, 10
for j = 1, tonumber(ARGV[9]) do
  local is_running
  local is_fine
  is_fine, is_running, i = pcall(settle, i)
  if not is_fine then -- what was settled before it stays so
    remove_what_ended()
    finish()
    error(is_running, 0)
  end
  if not is_running then stale[#stale + 1] = j - 1 end
end
remove_what_ended()
local due = tick()

local member = call('HMGET', P .. 'w:' .. me, 'lease', 'call', 'about')
if not member[1] or tonumber(member[1]) <= now then
  finish()
  return {stale, token, takes, {}, 1, 0, due, whole(now), version}
end

local signals, handed = {}, 0
if has('sig:' .. me) then
  local list, heard = P .. 'sig:' .. me, tonumber(ARGV[7])
  for _, packed in ipairs(call('LRANGE', list, 0, -1)) do
    local one = cmsgpack.unpack(packed)
    if one[1] <= heard then
      call('LPOP', list)
    else
      if one[2] == 'take' then
        local run = run_of(one[7], one[3])
        if run and run.token == one[5] then handed = handed + 1 else one[6] = '' end -- else it is over
      end
      signals[#signals + 1] = one
    end
  end
end

local is_open, more = not is_paused and not is_shut, 0
if number > tonumber(member[2]) then
  want = want - handed
  local spare = 0
  if is_open then
    token = whole(math.max(tonumber(call('HGET', META, 'token')) + 1, now))
    call('HSET', META, 'token', token)
    local residents = tonumber(ARGV[6])
    if residents > 0 then take('r', residents, 1, member[3]) end
    local before = #takes
    if want > 0 then want = want - take_suspect(member[3]) end
    local suspects = (#takes - before) / 4
    if want > 0 then take('j', want, per, member[3]) end
    spare = math.max(0, math.min(tonumber(ARGV[8]), want + suspects - (#takes - before) / 4))
  end
  call('HSET', P .. 'w:' .. me, 'call', ARGV[3], 'spare', spare)
end
if is_open then
  if call('EXISTS', P .. 'act:j:' .. me, P .. 'act:r:' .. me) > 0 then more = 1
  elseif call('EXISTS', P .. 'act:s:' .. me) > 0 and not runs_suspect() then more = 1 end
end
told[me] = nil -- this answer tells it
finish()
return {stale, token, takes, signals, 0, more, due, whole(now), version}
