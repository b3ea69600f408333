-- What both kinds of dispatch begin with: the last batch of a producer is remembered for two minutes, as 16 digits of
-- when that ends, 16 of its number, and what was answered.

local batch, number = P .. 'batch:' .. ARGV[2], string.format('%016.0f', ARGV[3])
local before = call('GET', batch)
if before and tonumber(sub(before, 1, 16)) > now and number <= sub(before, 17, 32) then
  return number == sub(before, 17, 32) and #before > 32 and cmsgpack.unpack(sub(before, 33)) or {}
end

local function remember_batch(verdicts)
  local answer = #verdicts > 0 and cmsgpack.pack(verdicts) or ''
  call('SET', batch, string.format('%016.0f', now + 120000000) .. number .. answer, 'PX', 120000)
end
