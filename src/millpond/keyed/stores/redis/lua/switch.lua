-- Pause and resume a key or the pool, and shut it.   ARGV: skew, pause, resume or shut, slot, key or '', by, reason.
-- Result: {''}. Residents of a paused key that run are asked to stop, and wait.

local what, slot, key = ARGV[2], ARGV[3], ARGV[4]
if what == 'shut' then
  call('HSET', META, 'shut', '1')
  changed()
elseif what == 'pause' then
  call('HSET', P .. 'pauses', key, cmsgpack.pack({whole(now), ARGV[5], ARGV[6]}))
  if key == '' then
    call('HSET', META, 'paused', '1')
  else
    local runs = call('HGETALL', P .. 'run:' .. slot)
    for i = 1, #runs, 2 do
      if sub(runs[i], 1, 1) == 'r' and key_of(runs[i]) == key then
        signal(run_of(slot, runs[i]).worker, 'pause', runs[i], '', 0, '')
      end
    end
  end
else
  local paused = call('SMEMBERS', P .. 'pk:' .. key)
  call('HDEL', P .. 'pauses', key)
  if key == '' then
    call('HSET', META, 'paused', '0', 'shut', '0')
    changed()
  else
    for _, mailbox in ipairs(paused) do
      leave_place(slot, mailbox)
      ready(slot, mailbox)
    end
  end
end
finish()
return {''}
