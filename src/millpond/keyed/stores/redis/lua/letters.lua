-- Put dead letters back into their mailboxes, or forget them.   ARGV: skew, replay or drop, numbers in order...
-- Result: {how many}.

local many = 0
for i = 3, #ARGV do
  local letter = call('HGET', P .. 'dead', ARGV[i])
  if letter then
    call('HDEL', P .. 'dead', ARGV[i])
    many = many + 1
    if ARGV[2] == 'replay' then
      local slot, mailbox, _, _, job = unpack(cmsgpack.unpack(letter))
      call('DEL', P .. 'out:' .. opened(job)[1])
      enter(slot, mailbox, stamp .. sub(job, 17))
    end
  end
end
finish()
return {whole(many)}
