-- What scripts share that end, move or remove jobs: twins of the methods of `rules.mailboxes`.

-- The fields of a stored job: id, name, reply, keep, and the payload as it was packed. cmsgpack cannot read the payload
-- (binary), so the fields are read one by one: after 16 digits and the byte that opens the array. What cannot be read
-- has no id and no name: it must not harm other jobs.
local function opened(job)
  local read, rest, id, name, reply, keep = pcall(cmsgpack.unpack_limit, job, 4, 17)
  if not read or type(id) ~= 'string' or type(name) ~= 'string' or type(reply) ~= 'string' or type(keep) ~= 'number' then
    return {'', '', '', 0, ''}
  end
  return {id, name, reply, keep, sub(job, rest + 1)}
end

local DEAD_RETRY = 10000000

local function run_of(slot, mailbox)
  local run = call('HGET', P .. 'run:' .. slot, mailbox)
  if not run then return nil end
  local token, taken, done, borrowed, worker = string.match(run, '^(%d+):(%d+):(%d+):(%d):(.*)$')
  return {token = token, taken = tonumber(taken), done = tonumber(done), borrowed = borrowed, worker = worker}
end

local function taken_of(slot, mailbox)
  local run = run_of(slot, mailbox)
  return run and run.taken - run.done or 0
end

local function conclude(id, status, data, keep, reply)
  if keep > 0 then
    local value = string.format('%016.0f', now + keep) .. status .. ' ' .. data
    call('SET', P .. 'out:' .. id, value, 'PX', whole(math.ceil(keep / 1000)))
    if reply ~= '' then hint(reply) end
  end
end

local function conclude_job(job, status, data)
  local envelope = opened(job)
  if has('cancelled') then call('SREM', P .. 'cancelled', envelope[1]) end
  conclude(envelope[1], status, data or '', envelope[4], envelope[3])
end

local function set_failures(mailbox, failures, losses, deaths, error)
  local value = whole(failures) .. ':' .. whole(losses) .. ':' .. whole(deaths) .. ':' .. error
  call('HSET', P .. 'failures', mailbox, value)
  used.failures = true
end

local function clear_failures(mailbox)
  if has('failures') then call('HDEL', P .. 'failures', mailbox) end
end

-- Leave nothing of a mailbox that is empty.
local function forget(mailbox)
  clear_failures(mailbox)
  if has('messages') and call('SREM', P .. 'messages', mailbox) == 1 then call('DEL', P .. 'msg:' .. mailbox) end
end

-- Remove jobs from the head of a mailbox; return how many are left, and how many were removed.
local function pop(mailbox, many)
  local box = P .. 'mb:' .. mailbox
  local length = call('LLEN', box)
  if many > length then many = length end
  if many <= 0 then return length, 0 end
  if has('cancelled') then
    for _, job in ipairs(call('LRANGE', box, 0, many - 1)) do call('SREM', P .. 'cancelled', opened(job)[1]) end
  end
  if many == length then call('DEL', box) else call('LTRIM', box, many, -1) end
  if sub(mailbox, 1, 1) == 'j' then count('jobs', -many) elseif many == length then count('residents', -1) end
  clear_failures(mailbox)
  return length - many, many
end

-- Put the first job of a mailbox among the dead letters; return how many are left. `tried`: 1 if it has just failed.
local function to_dead_letters(slot, mailbox, reason, status, tried)
  local job = call('LINDEX', P .. 'mb:' .. mailbox, 0)
  if not job then return 0 end
  local number, failures, losses = whole(call('HINCRBY', META, 'last_dead', 1)), failures_of(mailbox)
  local attempts = failures + losses + (tried or 0)
  call('HSET', P .. 'dead', number, cmsgpack.pack({slot, mailbox, whole(now), reason, job, attempts}))
  call('ZADD', P .. 'letters', number, number)
  call('ZADD', P .. 'dk:' .. key_of(mailbox), number, number)
  call('HINCRBY', P .. 'dead_jobs', opened(job)[1], 1)
  count('dead_total', 1)
  local left = pop(mailbox, 1)
  if status then conclude_job(job, status, reason) end
  return left
end

-- Let something happen at a time; return the member of `due` that stands for it.
local function remember(due, what)
  local member = string.format('%016.0f', call('HINCRBY', META, 'last_due', 1)) .. what
  call('ZADD', P .. 'due', whole(due), member)
  return member
end

-- Remove an entry of `retry`, `delayed` or `parked`, and what stands for it in `due`; return it.
local function remove_entry(key, name)
  local packed = call('HGET', P .. key, name)
  if not packed then return nil end
  local entry = cmsgpack.unpack(packed)
  call('HDEL', P .. key, name)
  call('ZREM', P .. 'due', entry[2])
  if key == 'parked' then call('SREM', P .. 'parked:' .. sub(name, 1, 1) .. ':' .. entry[3], name)
  elseif key == 'delayed' then call('SREM', P .. 'dl:' .. entry[3], name) end
  return entry
end

-- Let a mailbox wait no more for its first job to be tried again, or for somebody who knows it; tell whether it did.
local function leave_wait(mailbox)
  local was_retry, was_parked = remove_entry('retry', mailbox), remove_entry('parked', mailbox)
  return was_retry or was_parked
end

-- Take a mailbox out of its queue; tell whether it was there.
local function leave_ready(slot, mailbox, queue)
  local list = P .. 'rd:' .. queue .. ':' .. slot
  if call('LREM', list, 1, mailbox) == 0 then return false end
  if queue ~= 'r' then count('ready', -1) end
  if call('EXISTS', list) == 0 then
    local worker = owner_of(slot)
    if worker then disown(queue, slot, worker) end
  end
  return true
end

-- Take a mailbox that does not run away from where it stands.
local function leave_place(slot, mailbox)
  -- among the suspects or not: that depends on a limit which may have been another when it was made ready
  if not leave_ready(slot, mailbox, sub(mailbox, 1, 1)) then leave_ready(slot, mailbox, 's') end
  if call('HDEL', P .. 'paused', mailbox) == 1 then call('SREM', P .. 'pk:' .. key_of(mailbox), mailbox) end
  leave_wait(mailbox)
end

-- Take a job that no worker has out of its mailbox.
local function remove(slot, mailbox, job, status)
  local box = P .. 'mb:' .. mailbox
  local length, behind = call('LLEN', box), call('LPOS', box, job, 'RANK', -1)
  call('LREM', box, -1, job) -- of two that are equal, a worker may have the first
  if sub(mailbox, 1, 1) == 'j' then count('jobs', -1) elseif length == 1 then count('residents', -1) end
  if length == 1 then
    leave_place(slot, mailbox)
    forget(mailbox)
  elseif behind == 0 then
    local was_suspect = leave_ready(slot, mailbox, 's')
    clear_failures(mailbox)
    if leave_wait(mailbox) or was_suspect then ready(slot, mailbox) end
  end
  conclude_job(job, status)
end

local function signal(worker, kind, mailbox, id, note, data)
  if not is_member(worker) then return end
  local number = call('HINCRBY', META, 'last_signal', 1)
  call('RPUSH', P .. 'sig:' .. worker, cmsgpack.pack({number, kind, mailbox, id, note, data}))
  hint(worker)
end

local function are_dead_letters_full()
  local most = setting('max_dead')
  return most > 0 and call('HLEN', P .. 'dead') >= most
end

local function end_run(slot, mailbox)
  call('HDEL', P .. 'run:' .. slot, mailbox)
  if sub(mailbox, 1, 1) == 'j' then count('running', -1) end
  if has('borrowed') then call('HDEL', P .. 'borrowed', mailbox) end
end

-- Let a job be dead that has lost too many workers; return how many jobs are left, or nil: the dead letters are full, so
-- it waits.
local function give_up_lost(slot, mailbox, losses, deaths)
  if are_dead_letters_full() then
    call('HSET', P .. 'retry', mailbox, cmsgpack.pack({slot, remember(now + DEAD_RETRY, 'r' .. mailbox)}))
    return nil
  end
  local reason = 'its worker died ' .. deaths .. ' times while running it'
  if deaths < setting('max_losses') then
    reason = 'its worker was lost ' .. losses .. ' times while running it (' .. deaths .. ' proven deaths)'
  end
  return to_dead_letters(slot, mailbox, reason, 'lost')
end

-- Let the next job of a mailbox that stands nowhere have its turn, if there is one.
local function go_on(slot, mailbox, left)
  if left > 0 then ready(slot, mailbox) else forget(mailbox) end
end

-- Let a mailbox be ready whose retry is due, unless its first job is to be dead as soon as there is room.
local function try_again(slot, mailbox)
  local _, losses, deaths = failures_of(mailbox)
  if losses > 0 and is_lost(losses, deaths) then
    local left = give_up_lost(slot, mailbox, losses, deaths)
    if left then go_on(slot, mailbox, left) end
  else
    ready(slot, mailbox)
  end
end

-- End a take whose worker will not: its jobs are ready again. With `blame` its first job may have killed the worker.
local function recover(slot, mailbox, blame, worker)
  end_run(slot, mailbox)
  count('recovered', 1)
  local left = call('LLEN', P .. 'mb:' .. mailbox)
  if blame and sub(mailbox, 1, 1) == 'j' then
    local failures, losses, deaths, error = failures_of(mailbox)
    losses, deaths = losses + 1, deaths + call('EXISTS', P .. 'died:' .. worker)
    set_failures(mailbox, failures, losses, deaths, error)
    if is_lost(losses, deaths) and left > 0 then
      left = give_up_lost(slot, mailbox, losses, deaths)
    end
  end
  if left and left > 0 then ready(slot, mailbox, true) end
end
