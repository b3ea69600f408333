-- Where a job is.   ARGV: skew, slot, mailbox, id.   Result: {delayed, waiting, running, dead or gone}.

local slot, mailbox, id = ARGV[2], ARGV[3], ARGV[4]
if call('HEXISTS', P .. 'delayed', id) == 1 then return {'delayed'} end
local index = find(mailbox, id)
if index then return {index < taken_of(slot, mailbox) and 'running' or 'waiting'} end
return {call('HEXISTS', P .. 'buried', id) == 1 and 'dead' or 'gone'}
