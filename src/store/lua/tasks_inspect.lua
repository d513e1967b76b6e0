-- Reads the tasks and the counters of a queue.
--
-- Input:
--   KEYS     z, zl, zt, zm, zu, zd, zw, zf of the queue (see the wire format)
--   ARGV[1]  verb, with its arguments in ARGV[2] and ARGV[3]:
--     'task'     id
--     'payload'  id
--     'dead'     us behind which the page begins, most tasks
--     'due', 'delayed', 'running'  number of tasks before the page, most tasks
--     'stats'
--     'unserved'  us for which a poll counts
-- Output:
--   'task'     {'-1', view of the task}; {'-1'} if it is unknown
--   'payload'  the record; nil if the task is unknown
--   'dead'     {us behind which the next page begins, or '-1'; then the view of each task}
--   'due', 'delayed', 'running'  {number of tasks before the next page, or '-1'; us for which the
--              first task has been due; then the view of each task}
--   'stats'    {waiting, due, running, dead letters, bytes, pushed, done, failed, panicked,
--              crashed, dead, trimmed, cancelled, lost, paused, bytes of dead letters}
--   'unserved' {waiting tasks if no worker serves the queue and it is not paused, else 0}
--   A view is six values: id, state ('w' waiting, 'r' running, 'd' dead), us until it is due,
--   header of its record, bytes of its payload, history of its failures (`zm`).
-- Complexity: O(log n); pages O(log n + tasks).
-- A page has at most MAX_READ_BYTES of records, but at least one task; the others are on
-- the next page.
-- It only reads.
local WAITING, LEASES, RECORDS, FAILURES, DEAD_LETTERS, IDLE_WORKERS, QUEUE_META =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7], KEYS[8]
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
if ARGV[1] == 'unserved' then
  local meta = call('HMGET', QUEUE_META, 'paused', 'swept')
  -- Polls write `swept` once a second. A worker that was woken and has not polled yet is not
  -- listed.
  local is_served = meta[1] or tonumber(meta[2] or '0') > now_us - tonumber(ARGV[2])
    or call('ZCOUNT', IDLE_WORKERS, '(' .. integer(now_us), '+inf') > 0
    or call('ZCOUNT', LEASES, '(' .. integer(now_us), '+inf') > 0
  return {is_served and 0 or call('ZCARD', WAITING)}
end
if ARGV[1] ~= 'stats' then
  local offset, page_size = tonumber(ARGV[2]), tonumber(ARGV[3])
  local index, last = ARGV[1] == 'running' and LEASES or WAITING, offset + page_size - 1
  local due_count = index == WAITING and call('ZCOUNT', WAITING, '-inf', now_us) or 0
  local first = ARGV[1] == 'delayed' and due_count or 0
  if ARGV[1] == 'due' then last = min(last, due_count - 1) end
  local oldest = call('ZRANGE', WAITING, '0', '0', 'WITHSCORES')
  local results = {'-1', integer(max(now_us - tonumber(oldest[2] or now_us), 0))}
  local members = last < offset and {} or call('ZRANGE', index, first + offset, first + last)
  local read_bytes = 0
  for i, member in ipairs(members) do
    -- A lease names the worker behind the id.
    local id = string.sub(member, 1, 22)
    read_bytes = read_bytes + call('HSTRLEN', RECORDS, id)
    if i > 1 and read_bytes > MAX_READ_BYTES then
      results[1] = integer(offset + i - 1)
      return results
    end
    add_task_view(results, id, call('HGET', RECORDS, id) or '0 0 0 \n')
  end
  if #members == page_size then results[1] = integer(offset + page_size) end
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
