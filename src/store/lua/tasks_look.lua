-- Looks at a queue without changing it.
--
-- KEYS z, zl, zt, zm, zu, zd, zw, zf   ARGV[1] verb: 'task' id | 'payload' id | 'dead' after us, most | 'stats'
-- Returns 'task', 'dead': {next page after us or -1, then each task: id, state, us until due, head of its record, bytes
-- of its payload, zm} | 'payload': the record | 'stats': numbers. O(log n), 'dead' O(log n + most). Idempotent.
-- A page of 'dead' has no more tasks than BYTES of records, but one in any case; what is left is on the next.
local Z, L, T, M, D, F = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[8]
local function view(out, id, record)
  local at = call('ZSCORE', Z, id)
  local state = at and 'w' or call('ZSCORE', D, id) and 'd' or 'r'
  local head = string.match(record, '^[^\n]*')
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = id, state, int(max((tonumber(at or '0')) - now, 0))
  out[n + 4], out[n + 5], out[n + 6] = head, max(#record - #head - 1, 0), call('HGET', M, id) or ''
end
if ARGV[1] == 'payload' then return call('HGET', T, ARGV[2]) end
if ARGV[1] == 'task' then
  local record, out = call('HGET', T, ARGV[2]), {'-1'}
  if record then view(out, ARGV[2], record) end
  return out
end
if ARGV[1] == 'dead' then
  local most = tonumber(ARGV[3])
  local rows = call('ZRANGEBYSCORE', D, '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  local out, i, bytes = {'-1'}, 1, call('HSTRLEN', T, rows[1] or '')
  while rows[i] and (i == 1 or bytes <= BYTES) do
    view(out, rows[i], call('HGET', T, rows[i]) or '0 0 0 \n')
    i = i + 2
    if rows[i] then bytes = bytes + call('HSTRLEN', T, rows[i]) end
  end
  if rows[i] or #rows == 2 * most then out[1] = int(tonumber(rows[i - 1])) end
  return out
end
local out = {call('ZCARD', Z), call('ZCOUNT', Z, '-inf', now), call('ZCARD', L), call('ZCARD', D)}
local facts = call('HMGET', F, 'bytes', 'pushed', 'done', 'failed', 'panicked', 'crashed', 'dead', 'trimmed',
  'cancelled', 'lost', 'paused', 'buried')
for i = 1, 12 do out[4 + i] = max(tonumber(facts[i] or '0') or 0, 0) end
return out
