-- Where a job is.   ARGV: skew, slot, mailbox, id.   Result: {delayed, waiting, running, dead or gone}.

local slot, mailbox, id = ARGV[2], ARGV[3], ARGV[4]
if call('HEXISTS', P .. 'delayed', id) == 1 then return {'delayed'} end
local index = find(mailbox, id)
if index then return {index < taken_of(slot, mailbox) and 'running' or 'waiting'} end
for _, letter in ipairs(call('HVALS', P .. 'dead')) do
  if string.find(letter, id, 1, true) and opened(cmsgpack.unpack(letter)[5])[1] == id then return {'dead'} end
end
return {'gone'}
