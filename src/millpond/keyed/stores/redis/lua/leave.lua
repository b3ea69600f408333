-- Let a worker go: its slots are free. Not too many in one call; the last one dismisses it.
-- ARGV: skew, worker, most slots.   Result: {1 if there are more}.

local me, most = ARGV[2], tonumber(ARGV[3])
local own = call('HGETALL', P .. 'own')
local moved, more = 0, 0
for i = 1, #own, 2 do
  if own[i + 1] == me then
    if moved == most then more = 1; break end
    move(own[i], '', 'left')
    moved = moved + 1
  end
end
if more == 0 and is_member(me) then dismiss(me)
elseif moved > 0 and not is_member(me) then changed() end
finish()
return {more}
