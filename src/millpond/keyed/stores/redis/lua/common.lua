-- In front of every script but `probe`, `open`, `mark` and `sweep`. KEYS[1]: what all keys of the pool begin with; ARGV[1]: the
-- skew of the clock. A script answers with an array; with a text instead when there is no pool that it understands.
--
-- meta            hash     format, incarnation, settings, switches, counters, last numbers
-- mb:<mailbox>    list     jobs that are not settled, the oldest first; one that runs stays here
-- rd:<queue>:<slot>   list mailboxes of the slot that may be taken; a queue is a lane, or `s`: suspects
-- act:<queue>:<worker> list slots of the worker with something ready, each once; may name others, too
-- skip:<queue>:<worker> set those of them that have nothing ready or another owner: not to be listed twice
-- run:<slot>      hash     mailbox -> token:taken:done:borrowed:worker
-- own, slot       hash     slot -> owner (absent: nobody); slot -> packed {epoch, since, why, before}
-- members         zset     worker -> number of its joining;  w:<worker>  hash  lease, call, leaving, joined, about,
--                          suspect (token:slot:mailbox, the last that it was handed), spare (keys that it may be handed)
-- due             zset     16 digits of a number, then r<mailbox>, d<job> or p<mailbox> -> when: a retry, a delayed job,
--                          a parked mailbox that is given up; the number keeps those of one time in order
-- retry           hash     mailbox -> packed {slot, member of due}: it waits for a retry
-- delayed         hash     job -> packed {slot, member of due, mailbox, body};  dl:<mailbox>  set  jobs
-- parked          hash     mailbox -> packed {slot, member of due, name};  parked:<lane>:<name>  set  mailboxes
-- paused, borrowed hash    mailbox -> slot: it is paused; it was parked and runs with somebody who knows the job
-- pk:<key>        set      mailboxes of a key that are in `paused`
-- pauses          hash     key -> packed {since, by, reason}; the empty key stands for the pool
-- acts            list     packed {at, by, what, about, reason}: what people did, the latest last
-- cancelled       set      ids of jobs that a worker has and that are not to run again
-- failures        hash     mailbox -> failures:losses:deaths:how it failed the last time, of its first job
-- messages        set      mailboxes that were sent messages;  msg:<mailbox>  list  number:data
-- sig:<worker>    list     packed {number, kind, mailbox, id, note, data, slot of a take}
-- dead            hash     number -> packed {slot, mailbox, at, reason, job, attempts};  dead_jobs  hash  job -> letters
-- letters         zset     numbers of dead letters;  dk:<key>  zset  those of a key
-- died:<worker>   text     it was dismissed and was proven to be dead; expires
-- out:<job>, uniq:<job>, batch:<producer>   16 digits of the end, and what is remembered until then; they expire
--
-- Invariants: those of `rules.mailboxes`. Numbers of microseconds become text by `whole`, never by Lua, which writes 1.7e+15.
-- Nothing is written before all that can fail was read; hints go out last, and one that is forbidden harms nothing.

local P, call, sub = KEYS[1], redis.call, string.sub
local META = P .. 'meta'
local meta = call('HMGET', META, 'format', 'shut', 'paused', 'version')
if meta[1] ~= '4' then return meta[1] or 'gone' end
local is_shut, is_paused, version = meta[2] == '1', meta[3] == '1', meta[4]
local time = call('TIME')
local now = time[1] * 1000000 + time[2] + ARGV[1]
local stamp = string.format('%016.0f', now)

local function whole(number) return string.format('%.0f', number) end

local settings = {}
local function setting(name)
  local value = settings[name]
  if not value then value = tonumber(call('HGET', META, name)); settings[name] = value end
  return value
end

-- Whether an optional part is in use: asked once in a call.
local used = {}
local function has(key)
  local answer = used[key]
  if answer == nil then answer = call('EXISTS', P .. key) == 1; used[key] = answer end
  return answer
end

local tally, told, is_for_all = {}, {}, false
local function count(name, number) tally[name] = (tally[name] or 0) + number end
local function hint(name) told[name] = true end
local function hint_all() is_for_all = true end
local function changed() count('version', 1); hint_all() end

-- The end of every script that writes.
local function finish()
  for name, number in pairs(tally) do
    if number ~= 0 then call('HINCRBY', META, name, number) end
  end
  tally = {}
  for name in pairs(told) do redis.pcall('PUBLISH', P .. 'to:' .. name, '') end
  if is_for_all then redis.pcall('PUBLISH', P .. 'all', '') end
end

local members = {}
local function is_member(worker)
  local answer = members[worker]
  if answer == nil then answer = call('EXISTS', P .. 'w:' .. worker) == 1; members[worker] = answer end
  return answer
end

local owners = {}
local function owner_of(slot)
  local owner = owners[slot]
  if owner == nil then owner = call('HGET', P .. 'own', slot); owners[slot] = owner end
  return owner
end

-- Whether a slot is in a list of active slots, which is read once in a call: looking for each one takes too long.
local listed = {}
local function is_in(list, slot)
  local slots = listed[list]
  if not slots then
    slots = {}
    for _, one in ipairs(call('LRANGE', list, 0, -1)) do slots[one] = true end
    listed[list] = slots
  end
  return slots[slot]
end

-- Tell the owner of a slot, if it is a member, that something is ready there. `looking`: the slot may be listed already.
local function activate(lane, slot, looking)
  local worker = owner_of(slot)
  if not worker or not is_member(worker) then return end
  local list, skip, length = P .. 'act:' .. lane .. ':' .. worker, 'skip:' .. lane .. ':' .. worker, nil
  local is_listed
  if looking then is_listed = is_in(list, slot)
  else is_listed = has(skip) and call('SISMEMBER', P .. skip, slot) == 1 end
  if is_listed then
    if has(skip) then call('SREM', P .. skip, slot) end
    length = call('LLEN', list)
  else
    length = call('RPUSH', list, slot)
    if listed[list] then listed[list][slot] = true end
  end
  if length == 1 then hint(worker) end
end

-- A slot has nothing ready any more, or another owner: remember that it is listed, if it is.
local function disown(lane, slot, worker)
  local key = 'skip:' .. lane .. ':' .. worker
  if is_in(P .. 'act:' .. lane .. ':' .. worker, slot) then
    call('SADD', P .. key, slot)
    used[key] = true
  end
end

local function failures_of(mailbox)
  local value = has('failures') and call('HGET', P .. 'failures', mailbox)
  if not value then return 0, 0, 0, '' end
  local failures, losses, deaths, error = string.match(value, '^(%d+):(%d+):(%d+):(.*)$')
  return tonumber(failures), tonumber(losses), tonumber(deaths), error
end

-- Whether a first job has lost too many workers. One that is lost without a proof of death counts for less.
local function is_lost(losses, deaths)
  local most = setting('max_losses')
  return deaths >= most or losses >= 5 * most
end

-- Where a mailbox is when it is ready: in its lane, or among the suspects, whose first job is dead with its next loss.
local function queue_of(mailbox)
  local _, losses, deaths = failures_of(mailbox)
  if losses > 0 and is_lost(losses + 1, deaths + 1) then return 's' end
  return sub(mailbox, 1, 1)
end

local function ready(slot, mailbox, first)
  local queue = queue_of(mailbox)
  if queue ~= 'r' then count('ready', 1) end
  if call(first and 'LPUSH' or 'RPUSH', P .. 'rd:' .. queue .. ':' .. slot, mailbox) == 1 then activate(queue, slot) end
end

local function enter(slot, mailbox, job, hand_over)
  local is_job, length = sub(mailbox, 1, 1) == 'j', call('RPUSH', P .. 'mb:' .. mailbox, job)
  if length == 1 and not (hand_over and hand_over(slot, mailbox, job)) then ready(slot, mailbox) end
  if is_job then count('jobs', 1) elseif length == 1 then count('residents', 1) end
end

-- The key of a mailbox.
local function key_of(mailbox)
  return sub(mailbox, 1, 1) == 'j' and sub(mailbox, 3) or string.match(mailbox, '^r:[^:]*:(.*)$')
end
