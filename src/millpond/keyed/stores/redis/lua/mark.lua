-- Begin to drop the pool: from now on there is none.   KEYS[1] as ever.   Result: {incarnation, or nothing}.

local meta = KEYS[1] .. 'meta'
local incarnation = redis.call('HGET', meta, 'incarnation')
if not incarnation then return {} end
redis.call('HSET', meta, 'format', 'dropped')
redis.pcall('PUBLISH', KEYS[1] .. 'all', '')
return {incarnation}
