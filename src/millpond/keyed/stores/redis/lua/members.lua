-- What scripts share that deal with members and with who owns a slot: twins of the methods of `rules.pool`.

-- The members and how the pool stands. A brief one leaves out what they said of themselves.
local function beat(is_brief)
  local found = {}
  for _, worker in ipairs(call('ZRANGE', P .. 'members', 0, -1)) do
    local one = call('HMGET', P .. 'w:' .. worker, 'joined', 'lease', 'leaving', 'gone', is_brief and 'gone' or 'about')
    found[#found + 1] = {worker, not is_brief and one[5] or '', one[1], one[2], one[3], one[4] or '0'}
  end
  local head = call('HMGET', META, 'incarnation', 'version', 'shut')
  return {whole(now), head[1], head[2], head[3], found}
end

local function dismiss(worker)
  if call('ZREM', P .. 'members', worker) == 0 then return end
  if call('HGET', P .. 'w:' .. worker, 'gone') then call('SET', P .. 'died:' .. worker, '1', 'PX', 86400000) end
  call('DEL', P .. 'w:' .. worker, P .. 'sig:' .. worker, P .. 'act:j:' .. worker, P .. 'act:r:' .. worker,
    P .. 'act:s:' .. worker, P .. 'skip:j:' .. worker, P .. 'skip:r:' .. worker, P .. 'skip:s:' .. worker)
  members[worker] = false
  used['skip:j:' .. worker], used['skip:r:' .. worker], used['skip:s:' .. worker] = false, false, false
  changed()
end

-- Let a slot be somebody's; '' is nobody.
local function move(slot, taker, why)
  local owner = owner_of(slot)
  local was = call('HGET', P .. 'slot', slot)
  local epoch = math.max(was and tonumber(cmsgpack.unpack(was)[1]) + 1 or 1, now)
  call('HSET', P .. 'slot', slot, cmsgpack.pack({whole(epoch), whole(now), why, owner or ''}))
  if owner and owner ~= taker then
    disown('j', slot, owner)
    disown('r', slot, owner)
    disown('s', slot, owner)
  end
  if taker == '' then
    call('HDEL', P .. 'own', slot)
    owners[slot] = false
  else
    call('HSET', P .. 'own', slot, taker)
    owners[slot] = taker
  end
  count('moved', 1)
  for _, queue in ipairs({'j', 'r', 's'}) do
    if call('EXISTS', P .. 'rd:' .. queue .. ':' .. slot) == 1 then activate(queue, slot, true) end
  end
end
