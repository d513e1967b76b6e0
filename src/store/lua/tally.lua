-- What a shard has counted.
--
-- KEYS[1] f   KEYS[2] late   KEYS[3] done   KEYS[4] dead
-- Returns {pending, bytes, late, done, dead, trimmed done, trimmed dead, expired, cancelled}
-- O(log n). Reads only. What was filed, is not there and was not taken out by hand has been trimmed: by its time,
-- by the cap, or with the whole index.
local time = redis.call('TIME')
local now = string.format('(%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local v = redis.call('HMGET', KEYS[1], 'jobs', 'bytes', 'done', 'dead', 'done_out', 'dead_out', 'expired', 'cancelled')
for i = 1, 8 do v[i] = tonumber(v[i] or '0') end
local done, dead = redis.call('ZCOUNT', KEYS[3], now, '+inf'), redis.call('ZCOUNT', KEYS[4], now, '+inf')
local function trimmed(filed, out, kept) return math.max(filed - out - kept, 0) end
return {v[1], v[2], redis.call('ZCARD', KEYS[2]), done, dead, trimmed(v[3], v[5], done), trimmed(v[4], v[6], dead),
  v[7], v[8]}
