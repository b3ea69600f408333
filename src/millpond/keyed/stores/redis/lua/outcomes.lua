-- How jobs ended.   ARGV: skew, bytes after which to end, ids...   Result: {status and data with a blank between, or nothing,
-- ...}, shorter when it would be too large.

local found, size, most = {}, 0, tonumber(ARGV[2])
for i = 3, #ARGV do
  if size > most then break end
  local value = call('GET', P .. 'out:' .. ARGV[i])
  found[i - 2] = value and tonumber(sub(value, 1, 16)) > now and sub(value, 17)
  size = size + (found[i - 2] and #found[i - 2] or 0)
end
return found
