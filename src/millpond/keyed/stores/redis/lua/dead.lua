-- Dead letters, of all keys or of one.
-- ARGV: skew, how many, bytes after which to end, number behind which to begin or '', 1 for the newest first, key (or none).
-- Result: {now, number behind which to go on or '', {number, slot, mailbox, at, reason, job, attempts}...}.

local most, most_bytes, is_newest_first = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[5] == '1'
local index, after = ARGV[6] and P .. 'dk:' .. ARGV[6] or P .. 'letters', ARGV[4] ~= '' and '(' .. ARGV[4]
local numbers
if is_newest_first then numbers = call('ZREVRANGEBYSCORE', index, after or '+inf', '-inf', 'LIMIT', 0, most + 1)
else numbers = call('ZRANGEBYSCORE', index, after or '-inf', '+inf', 'LIMIT', 0, most + 1) end
local found, size, looked = {}, 0, 0
while looked < math.min(most, #numbers) and size <= most_bytes do
  looked = looked + 1
  local packed = call('HGET', P .. 'dead', numbers[looked])
  if packed then
    local letter = cmsgpack.unpack(packed)
    table.insert(letter, 1, numbers[looked])
    found[#found + 1] = letter
    size = size + #packed
  end
end
return {whole(now), looked < #numbers and numbers[looked] or '', found}
