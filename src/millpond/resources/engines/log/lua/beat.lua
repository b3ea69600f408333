-- Note that a companion lives; tell of those that have long been silent.
-- KEYS   sessions, beats of one pool.
-- ARGV   companion, microseconds of silence after which one is told of; then, to register: session, witness
-- Result {{session, witness, microseconds of silence, last beat}…}.
-- Keeps  every session has a witness; a companion that watches over nobody and is silent is forgotten.

local me, limit = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('HSET', KEYS[2], me, string.format('%.0f', now))
if #ARGV > 2 then
  redis.call('HSET', KEYS[1], ARGV[3], me .. '\n' .. ARGV[4])
  return {}
end
local beats = redis.call('HGETALL', KEYS[2])
local silent = {}
local some = false
for index = 1, #beats, 2 do
  local silence = math.abs(now - tonumber(beats[index + 1]))  -- the clock may have been set back since
  if silence >= limit then
    silent[beats[index]] = {string.format('%.0f', silence), beats[index + 1]}
    some = true
  end
end
if not some then return {} end
local found = {}
local sessions = redis.call('HGETALL', KEYS[1])
local busy = {}
for index = 1, #sessions, 2 do
  local cut = string.find(sessions[index + 1], '\n', 1, true)
  local companion = string.sub(sessions[index + 1], 1, cut - 1)
  if silent[companion] then
    busy[companion] = true
    found[#found + 1] = {sessions[index], string.sub(sessions[index + 1], cut + 1), silent[companion][1], silent[companion][2]}
  end
end
for companion in pairs(silent) do
  if not busy[companion] then redis.call('HDEL', KEYS[2], companion) end
end
return found
