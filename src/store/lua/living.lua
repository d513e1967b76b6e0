-- Stands before beat.lua and workers.lua: who lives of the workers.
--
-- KEYS[1] workers   ARGV[1] node   ARGV[2] lease, ms; 0 = it leaves
local time = redis.call('TIME')
local now = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function int(n) return string.format('%.0f', n) end
local node, lease = ARGV[1], tonumber(ARGV[2])

-- Other living workers, and how many live; whether this one is new, or has left.
local function present()
  local changed
  if lease > 0 then
    changed = redis.call('ZADD', KEYS[1], int(now + lease), node)
  else
    changed = redis.call('ZREM', KEYS[1], node)
  end
  -- The latest first: the key lives as long as that one.
  local rows = redis.call('ZREVRANGE', KEYS[1], 0, 100, 'WITHSCORES')
  local others, living, dead = {}, 0, 0
  for i = 1, #rows, 2 do
    if tonumber(rows[i + 1]) <= now then
      dead = dead + 1
    else
      living = living + 1
      if rows[i] ~= node and #others < 100 then others[#others + 1] = rows[i] end
    end
  end
  if living > 0 then redis.call('PEXPIRE', KEYS[1], int(tonumber(rows[2]) - now)) end
  if dead > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', int(now)) end
  if living > 100 then living = redis.call('ZCOUNT', KEYS[1], '(' .. int(now), '+inf') end
  return others, living, changed == 1
end
