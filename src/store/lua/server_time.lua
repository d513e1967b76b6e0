-- Prelude: the server time, `now_us`. Exact: microseconds stay below 2^53 until the year 2255.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
