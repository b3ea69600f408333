-- Who owns what.   ARGV: skew, 1 for all that is known of slots.   Result: {version, {slot, owner, ...}, {slot, packed
-- {epoch, since, why, before}, ...}}.

return {call('HGET', META, 'version'), call('HGETALL', P .. 'own'), ARGV[2] == '1' and call('HGETALL', P .. 'slot') or {}}
