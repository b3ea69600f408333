-- Mailboxes of some slots that are ready or running, or (without slots) all that stand elsewhere.
-- ARGV: skew, lane, 1 for the last job of each, first slot or -1, last slot.
-- Result: {{slot, mailbox, depth, when its oldest came, state, owner or '', run or '', trouble or '', last job or ''}...}.

local lane, from, found = ARGV[2], tonumber(ARGV[4]), {}

local function view(slot, mailbox, state, run)
  if sub(mailbox, 1, 1) ~= lane then return end
  local box = P .. 'mb:' .. mailbox
  local first = call('LINDEX', box, 0)
  if not first then return end
  found[#found + 1] = {slot, mailbox, call('LLEN', box), sub(first, 1, 16), state, owner_of(slot) or '', run or '',
    has('trouble') and call('HGET', P .. 'trouble', mailbox) or '', ARGV[3] == '1' and call('LINDEX', box, -1) or ''}
end

if from >= 0 then
  for slot = from, tonumber(ARGV[5]) do
    slot = whole(slot)
    for _, queue in ipairs({'rd:' .. lane .. ':', 'rd:s:'}) do
      for _, mailbox in ipairs(call('LRANGE', P .. queue .. slot, 0, -1)) do view(slot, mailbox, 'ready') end
    end
    local runs = call('HGETALL', P .. 'run:' .. slot)
    for i = 1, #runs, 2 do view(slot, runs[i], 'running', runs[i + 1]) end
  end
else
  for key, state in pairs({later = 'retry', held = 'held', shelves = 'shelved'}) do
    local places = call('HGETALL', P .. key)
    for i = 1, #places, 2 do
      view(key == 'held' and places[i + 1] or cmsgpack.unpack(places[i + 1])[1], places[i], state)
    end
  end
end
return found
