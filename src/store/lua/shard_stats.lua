-- Returns the job counters of a shard.
--
-- Input:
--   KEYS[1]  counters of the shard (HASH `f`)
--   KEYS[2]  delayed jobs (ZSET)
--   KEYS[3]  index of done jobs (ZSET)
--   KEYS[4]  index of dead jobs (ZSET)
-- Output: {pending, their bytes, delayed, done, dead, trimmed done, trimmed dead, expired,
--   cancelled}; done and dead are the jobs that are kept at present.
-- Complexity: O(log n).
-- It only reads.
local time = redis.call('TIME')
local after_now = string.format('(%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2]))
local values = redis.call('HMGET', KEYS[1], 'jobs', 'bytes', 'done', 'dead', 'done_out',
  'dead_out', 'expired', 'cancelled')
for i = 1, 8 do values[i] = tonumber(values[i] or '0') end
local done, dead = redis.call('ZCOUNT', KEYS[3], after_now, '+inf'),
  redis.call('ZCOUNT', KEYS[4], after_now, '+inf')
-- Returns the number of ended jobs that are not kept any more: their retention has ended, they were
-- evicted, or their whole index has expired. Purged and redriven jobs are not among them.
local function trimmed_count(filed_count, removed_count, kept_count)
  return math.max(filed_count - removed_count - kept_count, 0)
end
return {
  values[1], values[2], redis.call('ZCARD', KEYS[2]), done, dead,
  trimmed_count(values[3], values[5], done), trimmed_count(values[4], values[6], dead),
  values[7], values[8]
}
