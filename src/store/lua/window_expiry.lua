-- When fixed windows end. server_time.lua stands before this.
--
-- All of a script is one moment, `ms`, but its commands read the clock again until Redis 7.2, and a server may stand still
-- within a script: a window that is set and asked for by what is left of it would end at another moment than the one that
-- is told, and a refund names its window by that. So ends are set as moments, and asked for as such from 7.0 on.
local now_ms = math.floor(now_us / 1000)
-- What is left of a window is what this command answers, less `since`.
local EXPIRY_COMMAND, expiry_base_ms = 'PTTL', 0
if redis.REDIS_VERSION_NUM then EXPIRY_COMMAND, expiry_base_ms = 'PEXPIRETIME', now_ms end
