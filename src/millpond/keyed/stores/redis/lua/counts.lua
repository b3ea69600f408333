-- How some slots stand, or (without slots) the pool.   ARGV: skew, first slot or -1, last slot.
-- Result: {keys ready, keys running, residents, when the oldest ready job came or ''}, or {now, jobs, delayed, dead,
-- residents that are neither ready nor running, dispatched, done, retried, buried, recovered, moved, paused, shut}.

local from = tonumber(ARGV[2])
if from < 0 then
  local elsewhere = 0
  for _, key in ipairs({'later', 'held', 'shelves'}) do
    for _, mailbox in ipairs(call('HKEYS', P .. key)) do
      if sub(mailbox, 1, 1) == 'r' then elsewhere = elsewhere + 1 end
    end
  end
  local numbers = call('HMGET', META, 'dispatched', 'done', 'retried', 'buried', 'recovered', 'moved', 'paused', 'shut')
  return {whole(now), call('HGET', META, 'jobs'), call('HLEN', P .. 'delayed'), call('HLEN', P .. 'dead'), elsewhere,
    unpack(numbers)}
end
local is_ready, is_running, residents, oldest = 0, 0, 0, ''
for slot = from, tonumber(ARGV[3]) do
  slot = whole(slot)
  for _, queue in ipairs({'rd:j:', 'rd:s:'}) do
    local mailboxes = call('LRANGE', P .. queue .. slot, 0, -1)
    is_ready = is_ready + #mailboxes
    for _, mailbox in ipairs(mailboxes) do
      local came = sub(call('LINDEX', P .. 'mb:' .. mailbox, 0) or '9', 1, 16)
      if oldest == '' or came < oldest then oldest = came end
    end
  end
  residents = residents + call('LLEN', P .. 'rd:r:' .. slot)
  for _, mailbox in ipairs(call('HKEYS', P .. 'run:' .. slot)) do
    if sub(mailbox, 1, 1) == 'j' then is_running = is_running + 1
    elseif call('EXISTS', P .. 'mb:' .. mailbox) == 1 then residents = residents + 1 end
  end
end
return {is_ready, is_running, residents, oldest}
