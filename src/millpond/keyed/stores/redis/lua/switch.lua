-- Pause and resume a key or the pool, and shut it.   ARGV: skew, pause, resume or shut, mailbox or ''.   Result: {''}.

local what, mailbox = ARGV[2], ARGV[3]
if what == 'shut' then
  call('HSET', META, 'shut', '1')
  changed()
elseif mailbox == '' then
  if what == 'pause' then
    call('HSET', META, 'paused', '1')
  else
    call('HSET', META, 'paused', '0', 'shut', '0')
    changed()
  end
elseif what == 'pause' then
  call('SADD', P .. 'paused', mailbox)
else
  call('SREM', P .. 'paused', mailbox)
  local slot = call('HGET', P .. 'held', mailbox)
  if slot then
    call('HDEL', P .. 'held', mailbox)
    ready(slot, mailbox)
  end
end
finish()
return {''}
