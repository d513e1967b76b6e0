-- Forgets a job that has ended, with all that is kept of it: also the idempotency record that it was accepted
-- under, or a retry would be told for a day of what nobody can look up.
--
-- KEYS[1] j   KEYS[2] b   KEYS[3] r   KEYS[4] t   KEYS[5] done   KEYS[6] dead   KEYS[7] f   ARGV[1] job id
-- The record and what is counted of the indexes carry the tag of these keys; the record is named after what j says.
-- Returns 1 | 0 there is none that has ended
-- O(log n). Repeated, it finds nothing.
local id = ARGV[1]
local v = redis.call('HMGET', KEYS[1], 'state', 'lock', 'record')
if v[1] == 'queued' or v[1] == 'running' then return 0 end
-- One whose facts have vanished may stand in a line, with its request, which is counted: a visit sees to that. Only what
-- an index knows has ended.
if not v[1] and not redis.call('ZSCORE', KEYS[5], id) and not redis.call('ZSCORE', KEYS[6], id) then return 0 end
turn_to(string.sub(KEYS[1], 1, -#id - 3), v[2] or '')
unfile('done', id)
unfile('dead', id)
if v[2] and v[3] then
  local record = string.sub(KEYS[1], 1, -#id - 3) .. 'i:' .. string.match(v[3], '^%S+') .. ':' .. v[2]
  if string.match(redis.call('GET', record) or '', '^%S+') == id then redis.call('DEL', record) end
end
return redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) > 0 and 1 or 0
