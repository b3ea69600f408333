-- Where a job is.   ARGV: skew, slot, mailbox, id, where to search on or ''.
-- Result: {delayed, waiting, running, dead or gone}, or {more, where to search on}.

local slot, mailbox, id = ARGV[2], ARGV[3], ARGV[4]
if call('HEXISTS', P .. 'delayed', id) == 1 then return {'delayed'} end
local index, _, rest = find(mailbox, id, ARGV[5])
if index then return {index < taken_of(slot, mailbox) and 'running' or 'waiting'} end
if rest then return {'more', rest} end
return {call('HEXISTS', P .. 'dead_jobs', id) == 1 and 'dead' or 'gone'}
