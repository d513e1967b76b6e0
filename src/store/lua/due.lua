-- What the watcher of some shards should look at now, and when to look again.
--
-- KEYS one due index a shard, at most 64   ARGV[1] most names in all
-- Returns per shard: {ms until the next entry, 0 if more is due than could be named, or -1, then names
-- that are due}
-- O(shards * (log n + names)). Reads only: a name stays due until a visit (claim.lua) moves it.
local time = redis.call('TIME')
local now = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local stamp = string.format('%.0f', now)
local out, room = {}, tonumber(ARGV[1])
for i, key in ipairs(KEYS) do
  local row = {-1}
  local next = redis.call('ZRANGEBYSCORE', key, '(' .. stamp, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if #next > 0 then row[1] = tonumber(next[2]) - now end
  local due = redis.call('ZRANGEBYSCORE', key, '-inf', stamp, 'LIMIT', 0, room + 1)
  for n, name in ipairs(due) do
    if n > room then row[1] = 0 else row[n + 1] = name end
  end
  room = math.max(room - #due, 0)
  out[i] = row
end
return out
