-- Puts a dead job back into its line, as it was seen: at the tail, with all its attempts to come. What has happened to it
-- is still told. Caps are not looked at: it was accepted once.
--
-- KEYS[1] j   ARGV[1] job id   ARGV[2] when it died, us, or 0
-- Everything else that it names carries the tag of that key, and is named after the job and its lock.
-- Returns the state the job is in afterwards, or '' for an unknown one. One whose request has gone stays dead; so does one
-- that has died again since: whoever asks means the death that he saw, and a copy of his call may come late.
-- O(log n). Repeated it does nothing more.
local id, key = ARGV[1], KEYS[1]
local v = redis.call('HMGET', key, 'state', 'lock', 'bytes', 'ended', 'owner', 'record')
if not v[1] or not v[2] then return '' end
if v[1] ~= 'dead' or (v[4] or '0') ~= ARGV[2] then return v[1] end
turn_to(string.sub(key, 1, -#id - 3), v[2])
local request = own('b:' .. id)
local bytes = redis.call('EXISTS', request) == 1 and (tonumber(v[3]) or redis.call('STRLEN', request))
if not bytes then return 'dead' end
local seq = next_seq()
unfile('dead', id)
redis.call('HSET', key, 'state', 'queued', 'seq', int(seq), 'attempts', 0, 'reason', '', 'bytes', bytes)
-- What vanished with its facts: of one that was lost nothing else is known, so it runs once, and as of now.
redis.call('HSETNX', key, 'at', int(NOW_US))
redis.call('HSETNX', key, 'max', '1')
-- Its deadline was that of the first time.
redis.call('HDEL', key, 'run', 'ended', 'exp')
redis.call('PERSIST', key)
redis.call('PERSIST', request)
redis.call('PERSIST', own('t:' .. id))
for name in string.gmatch(v[6] or '', '(%S+) %d+') do
  local record = own('i:' .. name .. ':' .. NAME)
  if string.match(redis.call('GET', record) or '', '^%S+') == id then
    extend_record(record, math.max(redis.call('PTTL', record), PENDING), v[5] or '')
  end
end
redis.call('HINCRBY', F, 'jobs', '1')
redis.call('HINCRBY', F, 'bytes', bytes)
count_for(v[5], id, bytes)
stand(id, seq, bytes)
redis.call(PUBLISH, CHANNEL .. 'c', id)
return 'queued'
