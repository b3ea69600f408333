-- Take over slots that nobody owns or whose owner is dead, and what dead workers ran in them.
-- ARGV: skew, worker, call, heard, count of known tokens or -1, tokens..., count of the dead, {worker, lease end}..., slots...
-- Result: {got, contested, recovered, gone}.
-- A worker is dead when its process was seen to end; or when its lease is over (or, since the clock went back, further
-- away than a lease) and ends when the caller says: who renewed it since is alive.

local me, number, known = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local mine = call('HMGET', P .. 'w:' .. me, 'lease', 'call')
if not mine[1] or tonumber(mine[1]) <= now then return {{}, {}, 0, 1} end

local i, tokens = 6, nil
if known >= 0 and number >= tonumber(mine[2]) then -- else a take overtook it, of which its caller did not know
  tokens = {}
  for j = i, i + known - 1 do tokens[ARGV[j]] = true end
  call('HSET', P .. 'w:' .. me, 'call', ARGV[3])
  if has('sig:' .. me) then -- what was handed to it may still be on its way
    for _, packed in ipairs(call('LRANGE', P .. 'sig:' .. me, 0, -1)) do
      local one = cmsgpack.unpack(packed)
      if one[2] == 'take' and one[1] > tonumber(ARGV[4]) then tokens[one[5]] = true end
    end
  end
end
if known > 0 then i = i + known end
local many, length = tonumber(ARGV[i]), setting('lease')
i = i + 1
for j = 1, many do
  local worker, seen = ARGV[i], ARGV[i + 1]
  i = i + 2
  if worker ~= me then
    local one = call('HMGET', P .. 'w:' .. worker, 'lease', 'gone')
    local lease = one[1]
    if lease and one[2] then
      dismiss(worker)
    elseif lease and lease == seen then
      lease = tonumber(lease)
      if not (now < lease and lease <= now + length) then dismiss(worker) end
    end
  end
end

local drain, got, contested, recovered = setting('drain'), {}, {}, 0

-- Compare texts by their bytes: Lua itself does that by the language of the server.
local function is_after(a, b)
  for j = 1, math.min(#a, #b) do
    local x, y = string.byte(a, j), string.byte(b, j)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- Sort takes by their tokens and names: each is put in front of the line, so the oldest is the first again. (A hash has
-- no order, and takes of one call have one token.)
local function newest_first(takes)
  table.sort(takes, function(a, b)
    if a.token ~= b.token then return tonumber(a.token) > tonumber(b.token) end
    return is_after(a.mailbox, b.mailbox)
  end)
  return takes
end

-- Recover what nobody runs in a slot any more; tell whether somebody else still runs something there.
local function tidy(slot)
  local is_contested, is_drained, takes = false, nil, {}
  local runs = call('HGETALL', P .. 'run:' .. slot)
  for j = 1, #runs, 2 do
    local token, borrowed, worker = string.match(runs[j + 1], '^(%d+):%d+:%d+:(%d):(.*)$')
    takes[#takes + 1] = {mailbox = runs[j], token = token, borrowed = borrowed, worker = worker}
  end
  for _, take in ipairs(newest_first(takes)) do
    local token, borrowed, worker = take.token, take.borrowed, take.worker
    local is_over
    local is_lost = not is_member(worker)
    if worker == me then
      is_over = tokens and not tokens[token]
    else
      if is_drained == nil then
        local about = call('HGET', P .. 'slot', slot)
        is_drained = (about and tonumber(cmsgpack.unpack(about)[2]) or 0) + drain <= now
      end
      is_over = is_lost or (is_drained and borrowed == '0')
      is_contested = is_contested or not (is_over or borrowed == '1')
    end
    if is_over then
      recover(slot, take.mailbox, is_lost, worker)
      recovered = recovered + 1
    end
  end
  for _, queue in ipairs({'j', 'r', 's'}) do
    if call('EXISTS', P .. 'rd:' .. queue .. ':' .. slot) == 1 then activate(queue, slot, true) end
  end
  return is_contested
end

if has('borrowed') then -- to somebody who is gone, or to the caller, who does not know of it
  local borrowed, takes = call('HGETALL', P .. 'borrowed'), {}
  for j = 1, #borrowed, 2 do
    local run = run_of(borrowed[j + 1], borrowed[j])
    if run then
      run.slot, run.mailbox = borrowed[j + 1], borrowed[j]
      takes[#takes + 1] = run
    end
  end
  for _, run in ipairs(newest_first(takes)) do
    local is_lost = not is_member(run.worker)
    if is_lost or (run.worker == me and tokens and not tokens[run.token]) then
      recover(run.slot, run.mailbox, is_lost, run.worker)
      recovered = recovered + 1
    end
  end
end

for j = i, #ARGV do
  local slot = ARGV[j]
  local owner = owner_of(slot)
  if owner == me or not (owner and is_member(owner)) then
    if owner ~= me then
      move(slot, me, owner and 'died' or 'free')
      got[#got + 1] = slot
    end
    if tidy(slot) then contested[#contested + 1] = slot end
  end
end
if #got > 0 then changed() end
finish()
return {got, contested, recovered, 0}
