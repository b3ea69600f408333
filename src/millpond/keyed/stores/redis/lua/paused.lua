-- What is paused.   ARGV: skew.   Result: {now, {mailbox, slot, ...}}.

return {whole(now), call('HGETALL', P .. 'paused')}
