-- Pass slots on to others: from now on they take what is ready there.
-- ARGV: skew, worker, why, {slot, taker}...   Result: {how many the caller owned}.

local me, why, given, takers = ARGV[2], ARGV[3], 0, {}
for i = 4, #ARGV, 2 do
  local slot, taker = ARGV[i], ARGV[i + 1]
  if owner_of(slot) == me then
    if takers[taker] == nil then
      takers[taker] = taker ~= '' and call('HGET', P .. 'w:' .. taker, 'leaving') == '0'
    end
    move(slot, takers[taker] and taker or '', why)
    given = given + 1
  end
end
if given > 0 then changed() end
finish()
return {given}
