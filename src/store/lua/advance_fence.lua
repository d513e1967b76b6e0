-- Makes the next fence of this shard larger than one that was given elsewhere, if the lock is held: a holder
-- who has a lock in several stores that know nothing of each other takes the largest of their fences.
--
-- KEYS h, f   ARGV 'h<nonce>:<node>', the fence
-- Returns 1 held, and its next fence is larger | 0 not mine any more, nothing was touched
-- O(log n) in holders. Idempotent: what is kept never goes back, so neither a second run nor one whose caller has
-- gone changes what the next one gets but by numbers that are left out. Where f has vanished the next one is ahead of
-- the clock (wait_queue.lua), or begins here,
-- and where h has, nothing is mine.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local deadline_ms = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not deadline_ms or tonumber(deadline_ms) <= now_ms then return 0 end
-- The next one is behind the spare ones of the last that is kept.
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000
local last_fence, min_fence = tonumber(redis.call('HGET', KEYS[2], 'fence') or now_us + FENCE_LEAD_US), tonumber(ARGV[2]) - SPARE_FENCES
if last_fence < min_fence then redis.call('HSET', KEYS[2], 'fence', string.format('%.0f', min_fence)) end
return 1
