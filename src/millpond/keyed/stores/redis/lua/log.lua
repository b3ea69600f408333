-- Keep a line of what a person does.   ARGV: skew, most lines, by, what, about, reason.   Result: {''}.
-- A server without memory refuses that; what the person does may be what gives it some.

redis.pcall('RPUSH', P .. 'acts', cmsgpack.pack({whole(now), ARGV[3], ARGV[4], ARGV[5], ARGV[6]}))
call('LTRIM', P .. 'acts', '-' .. ARGV[2], -1)
return {''}
