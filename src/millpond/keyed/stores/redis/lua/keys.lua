-- Mailboxes of a lane.   ARGV: skew, lane, limit, and one of
--   slots, first slot, the mailbox in it after which to begin, or ''
--   one, slot, mailbox
--   later, held or shelves, cursor   (those that stand elsewhere)
-- Result: {now, where to go on or '', {slot, mailbox, depth, when its oldest came, state, owner or '', run or '',
--   trouble or '', when it is due or '', packed {epoch, since, why, before} or '', last job of a resident or '', 1 if it is ending}...}.

local lane, limit, how, found = ARGV[2], tonumber(ARGV[3]), ARGV[4], {}

local slots = {}
local function about(slot)
  local known = slots[slot]
  if not known then known = call('HGET', P .. 'slot', slot) or ''; slots[slot] = known end
  return known
end

local function view(slot, mailbox, state, run, due)
  if sub(mailbox, 1, 1) ~= lane then return end
  local box = P .. 'mb:' .. mailbox
  local first = call('LINDEX', box, 0)
  if not first then return end
  local last, is_ending = lane == 'r' and call('LINDEX', box, -1) or '', 0
  if last ~= '' and has('doomed') then is_ending = call('SISMEMBER', P .. 'doomed', opened(last)[1]) end
  found[#found + 1] = {slot, mailbox, call('LLEN', box), sub(first, 1, 16), state, owner_of(slot) or '', run or '',
    has('trouble') and call('HGET', P .. 'trouble', mailbox) or '', due or '', about(slot),
    last, is_ending}
end

local STATES = {later = 'retry', held = 'paused', shelves = 'parked'}
local function view_elsewhere(key, mailbox, value)
  if key == 'held' then return view(value, mailbox, 'paused') end
  local slot, member = unpack(cmsgpack.unpack(value))
  view(slot, mailbox, STATES[key], nil, key == 'later' and call('ZSCORE', P .. 'due', member) or nil)
end

-- Return the mailboxes of the lane that are ready or run in a slot: their names in order, and the runs of those that do.
local function standing(slot)
  local names, runs = {}, {}
  for _, queue in ipairs({'rd:' .. lane .. ':', 'rd:s:'}) do
    for _, mailbox in ipairs(call('LRANGE', P .. queue .. slot, 0, -1)) do
      if sub(mailbox, 1, 1) == lane then names[#names + 1] = mailbox end
    end
  end
  local found_runs = call('HGETALL', P .. 'run:' .. slot)
  for i = 1, #found_runs, 2 do
    if sub(found_runs[i], 1, 1) == lane then
      names[#names + 1] = found_runs[i]
      runs[found_runs[i]] = found_runs[i + 1]
    end
  end
  table.sort(names)
  return names, runs
end

if how == 'slots' then
  local after = ARGV[6]
  for slot = tonumber(ARGV[5]), setting('slots') - 1 do
    slot = whole(slot)
    local names, runs = standing(slot)
    for _, mailbox in ipairs(names) do
      if mailbox > after then
        if #found >= limit then return {whole(now), slot .. ':' .. found[#found][2], found} end
        view(slot, mailbox, runs[mailbox] and 'running' or 'ready', runs[mailbox])
      end
    end
    after = ''
    if #found >= limit then return {whole(now), whole(slot + 1) .. ':', found} end
  end
  return {whole(now), '', found}
elseif how == 'one' then
  local slot, mailbox = ARGV[5], ARGV[6]
  local run = call('HGET', P .. 'run:' .. slot, mailbox)
  if run then view(slot, mailbox, 'running', run) end
  for key in pairs(STATES) do
    local value = #found == 0 and call('HGET', P .. key, mailbox)
    if value then view_elsewhere(key, mailbox, value) end
  end
  if #found == 0 then view(slot, mailbox, 'ready') end
  return {whole(now), '', found}
end
local some = call('HSCAN', P .. how, ARGV[5], 'COUNT', limit)
for i = 1, #some[2], 2 do view_elsewhere(how, some[2][i], some[2][i + 1]) end
return {whole(now), some[1] == '0' and '' or some[1], found}
