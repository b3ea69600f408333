-- Delete keys of a pool that is being dropped; of no other, should it have been made anew.
-- ARGV: incarnation, 1 for the last time, keys without their beginning...   Result: {1 if it was still that one}.

local meta = KEYS[1] .. 'meta'
local found = redis.call('HMGET', meta, 'format', 'incarnation')
if found[1] ~= 'dropped' or found[2] ~= ARGV[1] then return {0} end
for i = 3, #ARGV do redis.call('UNLINK', KEYS[1] .. ARGV[i]) end
if ARGV[2] == '1' then redis.call('DEL', meta) end
return {1}
