-- The mailboxes of a lane that are ready or run in some slots.   ARGV: skew, lane, how many, first slot, last slot.
-- Result: {now, the slot after the last that was looked at, {slot, {mailbox...}, ...}}: whole slots, until there are
-- enough. Texts are not compared here: Lua does that by the language of the server.

local lane, limit, last = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local found, many, slot = {}, 0, tonumber(ARGV[4])
while slot <= last and many < limit do
  local here, names = whole(slot), {}
  for _, queue in ipairs({'rd:' .. lane .. ':', 'rd:s:'}) do
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
return {whole(now), slot, found}
