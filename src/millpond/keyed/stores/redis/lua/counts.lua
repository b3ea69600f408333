-- How the pool stands.   ARGV: skew.
-- Result: {now, jobs, keys ready, keys running, delayed, dead, residents, dispatched, done, retried, dead_total,
-- recovered, moved, paused, shut}.

local n = call('HMGET', META, 'jobs', 'ready', 'running', 'residents', 'dispatched', 'done', 'retried', 'dead_total',
  'recovered', 'moved', 'paused', 'shut')
return {whole(now), n[1], n[2], n[3], call('HLEN', P .. 'delayed'), call('HLEN', P .. 'dead'), unpack(n, 4)}
