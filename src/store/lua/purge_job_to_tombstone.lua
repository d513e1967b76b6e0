-- Purges an ended job. Its tombstone stays, and its idempotency records lead there: without them, a
-- retry would run the request a second time.
--
-- Input:
--   KEYS[1]  job record, j (HASH)
--   KEYS[2]  its request (STRING)
--   KEYS[3]  its response (STRING)
--   KEYS[4]  request of its webhook (STRING)
--   KEYS[5]  index of done jobs (ZSET)
--   KEYS[6]  index of dead jobs (ZSET)
--   KEYS[7]  f of the shard (HASH)
--   ARGV[1]  job id
--   ARGV[2]  time of the end that the caller has seen, us, or 0
-- The names of the ledger's keys are built from the first key; they share the hash tag.
-- Output: 1 purged, 0 there is no job with this end.
-- Complexity: O(log n).
-- Idempotent: a repeated call finds nothing. A late copy does not purge a job that was redriven, or
-- that has ended again since.
local id = ARGV[1]
local values = redis.call('HMGET', KEYS[1], 'state', 'lock', 'gone', 'ended')
if values[1] == 'queued'
  or values[1] == 'running'
  or values[3]
  or (values[4] or '0') ~= ARGV[2]
then
  return 0
end
-- If the job's key has vanished, the job may still be in a queue, with a request that is counted: a
-- claim ends it then. Only a job in an index has ended.
if not values[1]
  and not redis.call('ZSCORE', KEYS[5], id)
  and not redis.call('ZSCORE', KEYS[6], id)
then
  return 0
end
select_lock(string.sub(KEYS[1], 1, -#id - 3), values[2] or '')
remove_from_index('done', id)
remove_from_index('dead', id)
return leave_tombstone(id) > 0 and 1 or 0
