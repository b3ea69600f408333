-- Some of what happens at a time, by that time.   ARGV: skew, how many, when and member of the last one that was seen, or ''.
-- Result: {now, 1 if that was not the end, {when, member, slot or '' (it is not so any more), mailbox, body}...}.

local due, from = P .. 'due', 0
if ARGV[4] ~= '' then
  local rank = call('ZRANK', due, ARGV[4])
  from = rank and rank + 1 or call('ZCOUNT', due, '-inf', '(' .. ARGV[3])
end
local some, found = call('ZRANGE', due, from, from + ARGV[2] - 1, 'WITHSCORES'), {}
for i = 1, #some, 2 do
  local member, kind = some[i], sub(some[i], 17, 17)
  local key = kind == 'r' and 'retry' or kind == 'd' and 'delayed' or 'parked'
  local packed, name = call('HGET', P .. key, sub(member, 18)), sub(member, 18)
  local entry = packed and cmsgpack.unpack(packed) or {''}
  local is_delayed = kind == 'd' and packed
  found[#found + 1] = {some[i + 1], member, entry[1], is_delayed and entry[3] or name, is_delayed and entry[4] or ''}
end
return {whole(now), #some == 2 * ARGV[2] and 1 or 0, found}
