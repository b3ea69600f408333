-- How jobs ended.   ARGV: skew, ids...   Result: {status and data with a blank between, or nothing, ...}.

local found = {}
for i = 2, #ARGV do
  local value = call('GET', P .. 'out:' .. ARGV[i])
  found[i - 1] = value and tonumber(sub(value, 1, 16)) > now and sub(value, 17)
end
return found
