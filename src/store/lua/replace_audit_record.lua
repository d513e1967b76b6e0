-- Replaces a record of the audit log when its action has ended. Its time stays.
--
-- Input:
--   KEYS[1]  audit (HASH), see append_audit_record.lua
--   ARGV[1]  number of the record
--   ARGV[2]  record as it was appended
--   ARGV[3]  new record
-- Output: 1 if it was replaced; 0 if it is gone, or another one has its number.
-- Complexity: O(1).
-- Idempotent: a second call finds another record.
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local time_us, record = string.match(stored or '', '^(%d+) (.*)$')
if record ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], time_us .. ' ' .. ARGV[3])
return 1
