-- Prelude of the quota scripts: the time in milliseconds, and the choice of the command that reads
-- the end of a fixed window.
--
-- Expects `now_us` of server_time.lua. Included by charge_batch_fast.lua and settle_charge.lua.
-- Provides:
--   now_ms           server time, ms
--   EXPIRY_COMMAND   command that reads the expiry of a window's key
--   expiry_base_ms   subtracted from its reply, it gives the time left in the window, ms
--
-- The end of a window is written and read as a time (PXAT, PEXPIRETIME). A caller computes it as
-- `now_ms` plus the time left, and a refund identifies its window by it. A relative expiry (PX,
-- PTTL) could differ from that: until Redis 7.2 each command of a script reads the clock again, and
-- the server may stall between two of them. PEXPIRETIME needs Redis 7.0.
local now_ms = math.floor(now_us / 1000)
local EXPIRY_COMMAND, expiry_base_ms = 'PTTL', 0
if redis.REDIS_VERSION_NUM then EXPIRY_COMMAND, expiry_base_ms = 'PEXPIRETIME', now_ms end
