-- What people did, the latest last.   ARGV: skew, how many.   Result: {packed {at, by, what, about, reason}...}.

return call('LRANGE', P .. 'acts', '-' .. ARGV[2], -1)
