-- How mailboxes stand.   ARGV: skew, {slot, mailbox}...
-- Result: {now, {slot, mailbox, depth, when its oldest came, state, owner or '', run or '', failures or '', when it is due
--   or '', packed {epoch, since, why, before} or '', last job of a resident or '', 1 if it is ending}...}, without those
--   that are empty.

local found, slots = {}, {}
local function about(slot)
  local known = slots[slot]
  if not known then known = call('HGET', P .. 'slot', slot) or ''; slots[slot] = known end
  return known
end

local function state_of(slot, mailbox)
  local run = call('HGET', P .. 'run:' .. slot, mailbox)
  if run then return 'running', run end
  local retry = has('retry') and call('HGET', P .. 'retry', mailbox)
  if retry then return 'retry', '', call('ZSCORE', P .. 'due', cmsgpack.unpack(retry)[2]) end
  if has('paused') and call('HEXISTS', P .. 'paused', mailbox) == 1 then return 'paused', '' end
  if has('parked') and call('HEXISTS', P .. 'parked', mailbox) == 1 then return 'parked', '' end
  return 'ready', ''
end

for i = 2, #ARGV, 2 do
  local slot, mailbox = ARGV[i], ARGV[i + 1]
  local box = P .. 'mb:' .. mailbox
  local first = call('LINDEX', box, 0)
  if first then
    local state, run, due = state_of(slot, mailbox)
    local last, is_ending = '', 0
    if sub(mailbox, 1, 1) == 'r' then last = call('LINDEX', box, -1) end
    if last ~= '' and has('cancelled') then is_ending = call('SISMEMBER', P .. 'cancelled', opened(last)[1]) end
    found[#found + 1] = {slot, mailbox, call('LLEN', box), sub(first, 1, 16), state, owner_of(slot) or '', run,
      has('failures') and call('HGET', P .. 'failures', mailbox) or '', due or '', about(slot), last, is_ending}
  end
end
return {whole(now), found}
