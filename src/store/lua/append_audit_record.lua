-- Appends a record to the audit log, and removes the one that is `ARGV[2]` records older.
--
-- Input:
--   KEYS[1]  audit (HASH): last -> number of the last record, <number> -> '<time us> <record>'
--   ARGV[1]  record
--   ARGV[2]  number of records that are kept
-- Output: number of the record.
-- Complexity: O(1).
-- Never resent: a copy would be a second record. A record whose reply was lost says that its action
-- has begun, and the caller does not begin it.
-- Caller gone: the record stays as begun.
-- audit gone: numbers begin with 1 again.
local time = redis.call('TIME')
local number = tonumber(redis.call('HGET', KEYS[1], 'last') or '0') + 1
redis.call(
  'HSET', KEYS[1], 'last', string.format('%.0f', number), string.format('%.0f', number),
  string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])) .. ' ' .. ARGV[1]
)
redis.call('HDEL', KEYS[1], string.format('%.0f', number - tonumber(ARGV[2])))
return string.format('%.0f', number)
