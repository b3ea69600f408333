-- Who owns what.   ARGV: skew, 1 for all that is known of slots.   Result: {version, number of slots, {slot, owner, ...},
-- {slot, packed {epoch, since, why, before}, ...}}.

local about = ARGV[2] == '1' and call('HGETALL', P .. 'slot') or {}
return {version, call('HGET', META, 'slots'), call('HGETALL', P .. 'own'), about}
