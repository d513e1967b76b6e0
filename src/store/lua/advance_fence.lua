-- Makes the next fence of a shard larger than a given one, if the lock is held. A quorum lock uses
-- the largest fence of its stores, which know nothing of each other.
--
-- Input:
--   KEYS[1]  holders of the lock (ZSET)
--   KEYS[2]  f of the shard (HASH)
--   ARGV[1]  holder's member, 'h<token>'
--   ARGV[2]  fence
-- Output: 1 held, and the next fence is larger; 0 no longer held, nothing was changed.
-- Complexity: O(log holders).
-- Idempotent: the last fence never decreases.
-- Caller gone: some fences stay unused.
-- f gone: the next fence is ahead of the clock (wait_queue.lua), or after the given one if that is
-- larger.
-- h gone: not held.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local deadline_ms = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not deadline_ms or tonumber(deadline_ms) <= now_ms then return 0 end
-- The next fence follows the spare ones of the stored fence.
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000
local last_fence, min_fence =
  tonumber(redis.call('HGET', KEYS[2], 'fence') or now_us + FENCE_LEAD_US),
  tonumber(ARGV[2]) - SPARE_FENCES
if last_fence < min_fence then
  redis.call('HSET', KEYS[2], 'fence', string.format('%.0f', min_fence))
end
return 1
