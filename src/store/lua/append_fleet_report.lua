-- Appends the report of a process to the answers to an operator's inquiry.
--
-- Input:
--   KEYS[1]  asked:<inquiry> (LIST)
--   ARGV[1]  report
--   ARGV[2]  TTL, ms
--   ARGV[3]  most reports
-- Output: number of reports.
-- Complexity: O(1).
-- Not resent: a copy would be a second report. Without a reader the key expires.
local count = redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], 0, tonumber(ARGV[3]) - 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return count
