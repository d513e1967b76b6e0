-- What the watcher of some shards should look at now, and when to look again.
--
-- KEYS one due index a shard, at most 64   ARGV[1] most names a shard
-- Returns per shard: {ms until the next entry that is not due, or -1, then names that are due}
-- O(shards * (log n + names)). Reads only: a name stays due until a visit (claim.lua) moves it.
local time = redis.call('TIME')
local now = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local stamp = string.format('%.0f', now)
local out = {}
for i, key in ipairs(KEYS) do
  local row = {-1}
  local next = redis.call('ZRANGEBYSCORE', key, '(' .. stamp, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if #next > 0 then row[1] = tonumber(next[2]) - now end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', stamp, 'LIMIT', 0, ARGV[1])) do
    row[#row + 1] = name
  end
  out[i] = row
end
return out
