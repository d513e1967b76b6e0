-- Forgets a job that has ended, as it was seen, with all that is kept of it: also the idempotency records that it was accepted
-- under, or merged with, or a retry would be told for a day of what nobody can look up.
--
-- KEYS[1] j   KEYS[2] b   KEYS[3] r   KEYS[4] t   KEYS[5] done   KEYS[6] dead   KEYS[7] f   ARGV[1] job id
-- ARGV[2] when it ended, us, or 0
-- The record and what is counted of the indexes carry the tag of these keys; the record is named after what j says.
-- Returns 1 | 0 there is none that has ended then: a copy of this call may come when the job was put back, and has ended
-- again
-- O(log n). Repeated, it finds nothing.
local id = ARGV[1]
local v = redis.call('HMGET', KEYS[1], 'state', 'lock', 'record', 'ended')
if v[1] == 'queued' or v[1] == 'running' or (v[4] or '0') ~= ARGV[2] then return 0 end
-- One whose facts have vanished may stand in a line, with its request, which is counted: a visit sees to that. Only what
-- an index knows has ended.
if not v[1] and not redis.call('ZSCORE', KEYS[5], id) and not redis.call('ZSCORE', KEYS[6], id) then return 0 end
turn_to(string.sub(KEYS[1], 1, -#id - 3), v[2] or '')
unfile('done', id)
unfile('dead', id)
-- Without a time behind it where the request ran at once.
for name in string.gmatch(v[2] and v[3] or '', '(%S+) ?%d*') do
  local record = own('i:' .. name .. ':' .. v[2])
  if string.match(redis.call('GET', record) or '', '^%S+') == id then redis.call('DEL', record) end
end
return forget({id}) > 0 and 1 or 0
