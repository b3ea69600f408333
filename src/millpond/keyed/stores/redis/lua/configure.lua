-- Let other settings hold.   ARGV: skew, settings as they are given back, {field, value} that scripts read...
-- Result: {'done'}, or {'busy'}: lease or drain would change under workers, which go by those that they joined with.

local is_served = call('EXISTS', P .. 'members') == 1
for i = 3, #ARGV, 2 do
  local name = ARGV[i]
  if is_served and (name == 'lease' or name == 'drain') and tonumber(ARGV[i + 1]) ~= setting(name) then
    return {'busy'}
  end
end
call('HSET', META, 'settings', ARGV[2], unpack(ARGV, 3))
return {'done'}
