-- Give up the gate.
-- KEYS   meta of one pool.
-- ARGV   epoch.
-- Result 1 when it was still that of the epoch, else 0.
-- Keeps  the epoch: whoever takes the gate next has a higher one.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'decider', '')
return 1
