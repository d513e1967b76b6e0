-- Reads the tasks and the counters of a queue.
--
-- Input:
--   KEYS     z, zl, zt, zm, zu, zd, zw, zf of the queue (see the wire format)
--   ARGV[1]  verb, with its arguments in ARGV[2] and ARGV[3]:
--     'task'     id
--     'payload'  id
--     'dead'     us behind which the page begins, most tasks
--     'stats'
-- Output:
--   'task'     {'-1', view of the task}; {'-1'} if it is unknown
--   'payload'  the record; nil if the task is unknown
--   'dead'     {us behind which the next page begins, or '-1'; then the view of each task}
--   'stats'    {waiting, due, running, dead letters, bytes, pushed, done, failed, panicked,
--              crashed, dead, trimmed, cancelled, lost, paused, bytes of dead letters}
--   A view is six values: id, state ('w' waiting, 'r' running, 'd' dead), us until it is due,
--   header of its record, bytes of its payload, history of its failures (`zm`).
-- Complexity: O(log n); 'dead' O(log n + tasks).
-- A page of 'dead' has at most MAX_READ_BYTES of records, but at least one task; the others are on
-- the next page.
-- It only reads.
local WAITING, LEASES, RECORDS, FAILURES, DEAD_LETTERS, QUEUE_META =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[8]
local function add_task_view(results, id, record)
  local due_us = call('ZSCORE', WAITING, id)
  local state = due_us and 'w' or call('ZSCORE', DEAD_LETTERS, id) and 'd' or 'r'
  local header = string.match(record, '^[^\n]*')
  local count = #results
  results[count + 1], results[count + 2], results[count + 3] =
    id, state, integer(max((tonumber(due_us or '0')) - now_us, 0))
  results[count + 4], results[count + 5], results[count + 6] =
    header, max(#record - #header - 1, 0), call('HGET', FAILURES, id) or ''
end
if ARGV[1] == 'payload' then return call('HGET', RECORDS, ARGV[2]) end
if ARGV[1] == 'task' then
  local record, results = call('HGET', RECORDS, ARGV[2]), {'-1'}
  if record then add_task_view(results, ARGV[2], record) end
  return results
end
if ARGV[1] == 'dead' then
  local page_size = tonumber(ARGV[3])
  local rows = call('ZRANGEBYSCORE', DEAD_LETTERS, '(' .. ARGV[2], '+inf',
    'WITHSCORES', 'LIMIT', 0, page_size)
  local results, i, read_bytes = {'-1'}, 1, call('HSTRLEN', RECORDS, rows[1] or '')
  while rows[i] and (i == 1 or read_bytes <= MAX_READ_BYTES) do
    add_task_view(results, rows[i], call('HGET', RECORDS, rows[i]) or '0 0 0 \n')
    i = i + 2
    if rows[i] then read_bytes = read_bytes + call('HSTRLEN', RECORDS, rows[i]) end
  end
  if rows[i] or #rows == 2 * page_size then results[1] = integer(tonumber(rows[i - 1])) end
  return results
end
local results = {
  call('ZCARD', WAITING), call('ZCOUNT', WAITING, '-inf', now_us),
  call('ZCARD', LEASES), call('ZCARD', DEAD_LETTERS)
}
local counters = call('HMGET', QUEUE_META, 'bytes', 'pushed', 'done', 'failed', 'panicked',
  'crashed', 'dead', 'trimmed', 'cancelled', 'lost', 'paused', 'buried')
for i = 1, 12 do results[4 + i] = max(tonumber(counters[i] or '0') or 0, 0) end
return results
