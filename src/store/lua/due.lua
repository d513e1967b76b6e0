-- What the watcher of some shards should look at now, and when to look again. Puts jobs that were late back
-- into their line, and ends those whose deadline has passed before they ran.
--
-- KEYS one due index a shard, at most 64   ARGV[1] most names in all   ARGV[2] how many shards
-- Everything else that it names carries the tag of one of these: which jobs and locks it is about turns out here.
-- Returns per shard: {us until something comes due, 0 if more is due than could be seen to, or -1, then per
-- lock that is due its name and its first job, or ''}. Shards that come after as many names as were wanted are not
-- looked at: 0, and no names
-- O(shards * log n + (names + jobs) * log n), at most 100 late jobs and 100 deadlines in a call. A name stays due until a
-- visit (claim.lua) moves it; the line of a callback, which may wait for long until there is room for a visit, is due again
-- after a while, so that those behind it are seen. Repeated, it finds less to do; a caller that has gone has left nothing
-- half done.
local out, room, comes, ends = {}, tonumber(ARGV[1]), SCAN, SCAN
-- Late jobs that may be looked at to count them anew.
local counts = 500
-- After how many ms the line of a callback comes again.
local CALLS = 1000

-- Jobs of an index whose time has come.
local function ripe(index, most)
  if most == 0 then return {} end
  return redis.call('ZRANGEBYSCORE', index, '-inf', int(NOW), 'LIMIT', '0', most)
end

-- A late job is in time again. True if its key has vanished.
local function come_back(tag, id)
  local v = redis.call('HMGET', tag .. 'j:' .. id, 'state', 'lock', 'seq', 'bytes', 'exp')
  local bytes = tonumber(v[4] or '0')
  turn_to(tag, v[2] or '')
  if v[1] == 'queued' and v[2] then
    if v[5] and tonumber(v[5]) <= NOW then return expire_job(id, bytes) end
    take_late(id, bytes)
    local seq, first = tonumber(v[3]) or next_seq(), redis.call('ZRANGE', G, '0', '0', 'WITHSCORES')
    -- An offer to the job that was first is nobody's yet.
    if #first > 0 and seq < tonumber(first[2]) then redis.call('ZREM', H, 'j' .. first[1]) end
    return stand(id, seq, bytes)
  end
  if v[1] and (v[2] or v[1] ~= 'queued') then return take_late(id, bytes) and nil end
  -- Its key has vanished, or what it said of that: nobody knows where it belongs.
  redis.call('ZREM', own('late'), id)
  local request = own('b:' .. id)
  uncount(redis.call('STRLEN', request) + redis.call('STRLEN', own('t:' .. id)))
  redis.call('DEL', own('j:' .. id), request, own('t:' .. id))
  return true
end

-- Which lock a vanished job was counted for is not known: all that are late are counted anew. If they are too many for
-- one step, the count begins anew: a cap that is too wide for a while is better than one that refuses for nothing.
local function count_late(tag)
  turn_to(tag, '')
  redis.call('DEL', own('lates'))
  local ids, sums = redis.call('ZRANGE', own('late'), '0', counts), {}
  if #ids > counts then return end
  counts = counts - #ids
  for _, id in ipairs(ids) do
    local v = redis.call('HMGET', own('j:' .. id), 'lock', 'bytes')
    if v[1] then
      sums['n' .. v[1]] = (sums['n' .. v[1]] or 0) + 1
      sums['b' .. v[1]] = (sums['b' .. v[1]] or 0) + tonumber(v[2] or '0')
    end
  end
  for field, sum in pairs(sums) do redis.call('HSET', own('lates'), field, int(sum)) end
end

local function run_out(tag, id)
  local v = redis.call('HMGET', tag .. 'j:' .. id, 'state', 'lock', 'bytes')
  redis.call('ZREM', tag .. 'exp', id)
  -- One that runs is left: if it has to run again, its deadline is looked at then.
  if v[1] ~= 'queued' or not v[2] then return end
  turn_to(tag, v[2])
  expire_job(id, tonumber(v[3] or '0'))
end

-- When the first of an index comes due; `least` if that is sooner.
local function sooner(index, least)
  local first = redis.call('ZRANGE', index, '0', '0', 'WITHSCORES')
  if #first == 0 then return least end
  local at = tonumber(first[2])
  return least and math.min(at, least) or at
end

local function look(due)
  -- Its turn is the next time.
  if room == 0 then return {0} end
  local tag, next, row = string.sub(due, 1, -4), nil, {-1}
  if redis.call('EXISTS', tag .. 'late', tag .. 'exp') > 0 then
    local vanished = false
    for _, id in ipairs(ripe(tag .. 'late', comes)) do
      vanished = come_back(tag, id) or vanished
      comes = comes - 1
    end
    if vanished then count_late(tag) end
    for _, id in ipairs(ripe(tag .. 'exp', ends)) do
      run_out(tag, id)
      ends = ends - 1
    end
    next = sooner(tag .. 'exp', sooner(tag .. 'late', nil))
  end
  local later = redis.call('ZRANGEBYSCORE', due, '(' .. int(NOW), '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  if #later > 0 then next = math.min(tonumber(later[2]), next or math.huge) end
  local names = redis.call('ZRANGEBYSCORE', due, '-inf', int(NOW), 'LIMIT', '0', room + 1)
  for n, name in ipairs(names) do
    if n > room then
      next = 0
    else
      row[#row + 1] = name
      row[#row + 1] = redis.call('ZRANGE', tag .. 'g:' .. name, '0', '0')[1] or ''
      if string.sub(name, 1, 3) == 'cb:' then
        -- Also without room, since what stands behind it may make some: see renew.lua.
        redis.call('ZREM', due, '')
        redis.call('ZADD', due, int(NOW + CALLS), name)
        next = math.min(next or math.huge, NOW + CALLS)
      end
    end
  end
  room = math.max(room - #names, 0)
  -- Ours is the time within the millisecond: a timer that adds to it is as much late.
  if next then row[1] = math.max(next * 1000 - NOW_US, 0) end
  return row
end

for i = 1, tonumber(ARGV[2]) do out[i] = look(KEYS[i]) end
return out
