-- What is paused.   ARGV: skew.   Result: {now, {key, packed {since, by, reason}, ...}}.

return {whole(now), call('HGETALL', P .. 'pauses')}
