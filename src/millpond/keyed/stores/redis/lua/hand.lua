-- What both kinds of dispatch share: a job that is alone in its mailbox is handed to the owner of its slot, if that waits
-- for more: a twin of `rules.takes.hand_over`. The wake-up carries it; it is a signal, too, should the wake-up be lost.

local HANDED, HANDED_BYTES, is_small = 8, 16384, false

local function hand_over(slot, mailbox, job)
  if not is_small or is_paused or sub(mailbox, 1, 1) ~= 'j' or #job > HANDED_BYTES or has('cancelled') then return false end
  if has('pauses') and call('HEXISTS', P .. 'pauses', key_of(mailbox)) == 1 then return false end
  local worker = owner_of(slot)
  if not worker then return false end
  local member = call('HMGET', P .. 'w:' .. worker, 'spare', 'lease', 'leaving', 'gone')
  if tonumber(member[1] or 0) < 1 or tonumber(member[2]) <= now or member[3] == '1' or member[4] then return false end
  local last, list = call('HMGET', META, 'token', 'last_signal'), P .. 'sig:' .. worker
  local token, number = whole(math.max(tonumber(last[1]) + 1, now)), tonumber(last[2] or 0) + 1
  local before = call('LINDEX', list, -1)
  before = before and cmsgpack.unpack(before)[1] or 0
  local text = table.concat({before, number, slot, token, #mailbox, mailbox .. job}, ' ')
  local heard = redis.pcall('PUBLISH', P .. 'to:' .. worker, text)
  if type(heard) ~= 'number' or heard == 0 then return false end -- its process may be gone
  call('HSET', META, 'token', token, 'last_signal', number)
  call('RPUSH', list, cmsgpack.pack({number, 'take', mailbox, '', token, job, slot}))
  call('HINCRBY', P .. 'w:' .. worker, 'spare', -1)
  call('HSET', P .. 'run:' .. slot, mailbox, token .. ':1:0:0:' .. worker)
  count('running', 1)
  return true
end
