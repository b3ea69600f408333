-- Delayed jobs.   ARGV: skew, about how many, cursor.   Result: {now, cursor, {due, slot, mailbox, body}...}.

local some, found = call('HSCAN', P .. 'delayed', ARGV[3], 'COUNT', ARGV[2]), {}
for i = 2, #some[2], 2 do
  local slot, member, mailbox, body = unpack(cmsgpack.unpack(some[2][i]))
  found[#found + 1] = {call('ZSCORE', P .. 'due', member) or '0', slot, mailbox, body}
end
return {whole(now), some[1], found}
