-- Put dead letters back into their mailboxes, or forget them.   ARGV: skew, replay or drop, numbers in order...
-- Result: {how many}.

local many = 0
for i = 3, #ARGV do
  local letter = call('HGET', P .. 'dead', ARGV[i])
  if letter then
    local slot, mailbox, _, _, job = unpack(cmsgpack.unpack(letter))
    local id = opened(job)[1]
    call('HDEL', P .. 'dead', ARGV[i])
    call('ZREM', P .. 'letters', ARGV[i])
    call('ZREM', P .. 'dk:' .. key_of(mailbox), ARGV[i])
    if call('HINCRBY', P .. 'dead_jobs', id, -1) <= 0 then call('HDEL', P .. 'dead_jobs', id) end
    many = many + 1
    if ARGV[2] == 'replay' then
      call('DEL', P .. 'out:' .. id)
      enter(slot, mailbox, stamp .. sub(job, 17))
    end
  end
end
finish()
return {whole(many)}
