-- When the oldest job came that is ready in some slots, of the first keys of each.
-- ARGV: skew, first slot, last slot, how many keys of each.   Result: {16 digits, or '', number of slots}.

local oldest, queues = '', has('failures') and {'rd:j:', 'rd:s:'} or {'rd:j:'} -- a suspect has lost workers
local slots = tonumber(call('HGET', META, 'slots'))
for slot = tonumber(ARGV[2]), math.min(tonumber(ARGV[3]), slots - 1) do
  for _, queue in ipairs(queues) do
    for _, mailbox in ipairs(call('LRANGE', P .. queue .. whole(slot), 0, ARGV[4] - 1)) do
      local came = sub(call('LINDEX', P .. 'mb:' .. mailbox, 0) or '9', 1, 16)
      if oldest == '' or came < oldest then oldest = came end
    end
  end
end
return {oldest, slots}
