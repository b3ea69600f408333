-- What `start` and `stop` share: tell the worker of a resident to end it, and drop what waits behind it.

local function cancel_resident(slot, mailbox)
  local box = P .. 'mb:' .. mailbox
  call('LTRIM', box, 0, 0)
  local id = opened(call('LINDEX', box, 0))[1]
  call('SADD', P .. 'cancelled', id)
  signal(run_of(slot, mailbox).worker, 'cancel', mailbox, id, 0, '')
end
