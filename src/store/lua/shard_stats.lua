-- What a shard has counted.
--
-- KEYS[1] f   KEYS[2] late   KEYS[3] done   KEYS[4] dead
-- Returns {pending, bytes, late, done, dead, trimmed done, trimmed dead, expired, cancelled}
-- O(log n). Reads only. What was filed, is not there and was not taken out by hand has been trimmed: by its time,
-- by the cap, or with the whole index.
local time = redis.call('TIME')
local after_now = string.format('(%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local values = redis.call('HMGET', KEYS[1], 'jobs', 'bytes', 'done', 'dead', 'done_out', 'dead_out', 'expired', 'cancelled')
for i = 1, 8 do values[i] = tonumber(values[i] or '0') end
local done, dead = redis.call('ZCOUNT', KEYS[3], after_now, '+inf'), redis.call('ZCOUNT', KEYS[4], after_now, '+inf')
local function trimmed_count(filed_count, removed_count, kept_count) return math.max(filed_count - removed_count - kept_count, 0) end
return {values[1], values[2], redis.call('ZCARD', KEYS[2]), done, dead, trimmed_count(values[3], values[5], done), trimmed_count(values[4], values[6], dead),
  values[7], values[8]}
