-- Dead letters.   ARGV: skew, numbers...
-- Result: without numbers, {now, numbers of all}; else {slot, mailbox, at, reason, job, attempts} of each, or nothing.

if #ARGV == 1 then return {whole(now), call('HKEYS', P .. 'dead')} end
local found = {}
for i = 2, #ARGV do
  local letter = call('HGET', P .. 'dead', ARGV[i])
  found[i - 1] = letter and cmsgpack.unpack(letter)
end
return found
