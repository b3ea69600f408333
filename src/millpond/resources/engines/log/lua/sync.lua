-- Post parcels, take the gate if it is free and wanted, or there is something in the inbox; return what is new.
-- KEYS   meta, log, inbox, snapshot of one pool.
-- ARGV   companion, wants the gate (0, 1), microseconds after which the gate is free, seq known (-1: none), tip known,
--        prefix of channels, name of the pool, format, parcels…
-- Result {now, epoch if the gate is the companion's else 0, seq, tip, base, items, snapshot or false, inbox}, or the
--        format of the pool if that is another. Items are {seq, tip, body}.
-- Keeps  one decider at a time: the epoch grows whenever the gate comes into other hands.

local me, lease, known = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local meta = redis.call('HMGET', KEYS[1], 'format', 'epoch', 'seq', 'tip', 'base', 'decider', 'active')
if meta[1] and meta[1] ~= ARGV[8] then return meta[1] end
local epoch, seq, base = tonumber(meta[2] or 0), tonumber(meta[3] or 0), tonumber(meta[5] or 0)
local tip, decider, active = meta[4] or '', meta[6] or '', tonumber(meta[7] or 0)

for index = 9, #ARGV do redis.call('RPUSH', KEYS[3], ARGV[index]) end

local is_wanted = ARGV[2] == '1' or redis.call('LLEN', KEYS[3]) > 0
if is_wanted and (decider == me or decider == '' or now - active >= lease or active > now + lease) then
  if decider ~= me then
    epoch = epoch + 1
    decider = me
  end
  redis.call('HSET', KEYS[1], 'format', ARGV[8], 'epoch', epoch, 'decider', me, 'active', string.format('%.0f', now))
elseif #ARGV > 8 then
  redis.call('PUBLISH', ARGV[6] .. 'to:' .. decider, ARGV[7])
end

local items, snapshot, inbox = {}, false, {}
if known < 0 then
  snapshot = redis.call('GET', KEYS[4])
  items = redis.call('XRANGE', KEYS[2], '-', '+')
elseif seq ~= known or tip ~= ARGV[5] then
  items = redis.call('XRANGE', KEYS[2], '(' .. ARGV[4], '+')
end
local found = {}
for index, item in ipairs(items) do found[index] = {item[1], item[2][2], item[2][4]} end
if decider == me then inbox = redis.call('LRANGE', KEYS[3], 0, 999) end
return {string.format('%.0f', now), decider == me and epoch or 0, seq, tip, base, found, snapshot, inbox}
