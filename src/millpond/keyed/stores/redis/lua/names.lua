-- The mailboxes of a lane that are ready or run in some slots.
-- ARGV: skew, lane, how many, first slot, last slot, 1 for those only that run.
-- Result: {now, the slot after the last that was looked at, {slot, {mailbox...}, ...}, number of slots}: whole slots, until
-- there are enough. Texts are not compared here: Lua does that by the language of the server.

local slots = tonumber(call('HGET', META, 'slots'))
local lane, limit, last = ARGV[2], tonumber(ARGV[3]), math.min(tonumber(ARGV[5]), slots - 1)
local found, many, slot = {}, 0, tonumber(ARGV[4])
while slot <= last and many < limit do
  local here, names = whole(slot), {}
  for _, queue in ipairs(ARGV[6] == '1' and {} or {'rd:' .. lane .. ':', 'rd:s:'}) do
    for _, mailbox in ipairs(call('LRANGE', P .. queue .. here, 0, -1)) do
      if sub(mailbox, 1, 1) == lane then names[#names + 1] = mailbox end
    end
  end
  for _, mailbox in ipairs(call('HKEYS', P .. 'run:' .. here)) do
    if sub(mailbox, 1, 1) == lane then names[#names + 1] = mailbox end
  end
  if #names > 0 then
    found[#found + 1] = here
    found[#found + 1] = names
    many = many + #names
  end
  slot = slot + 1
end
return {whole(now), slot, found, slots}
