-- Forget sessions that are over.
-- KEYS   sessions, beats of one pool.
-- ARGV   sessions…
-- Result nothing.
-- Keeps  a pool that nobody uses has no beats: to look at a pool that does not exist leaves nothing behind.

redis.call('HDEL', KEYS[1], unpack(ARGV))
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('DEL', KEYS[2]) end
