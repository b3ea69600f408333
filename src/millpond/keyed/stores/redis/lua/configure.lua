-- Let other settings hold.   ARGV: skew, {setting, value}...
-- Result: {'done'}, or {'busy'}: lease or drain would change under workers, which go by those that they joined with.

local kept = cjson.decode(call('HGET', META, 'settings'))
local is_served = call('EXISTS', P .. 'members') == 1
for i = 2, #ARGV, 2 do
  local name, value = ARGV[i], tonumber(ARGV[i + 1])
  if is_served and (name == 'lease' or name == 'drain') and value ~= setting(name) then return {'busy'} end
  kept[name] = value
end
call('HSET', META, 'settings', cjson.encode(kept))
for i = 2, #ARGV, 2 do call('HSET', META, ARGV[i], ARGV[i + 1]) end
return {'done'}
