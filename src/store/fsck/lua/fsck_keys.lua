-- Looks at a shard for what should not be there, and mends it if told to.
--
-- KEYS[1] f of the shard   ARGV[1] the look   ARGV[2] '1' = mend   ARGV[3] where it begins, as the look before said
-- ARGV[4..] names
-- Looks: 'due' from | 'lines' after, locks | 'late' 'exp' 'done' 'dead' from | 'sums' all or some, locks
--   | 'keys' -, keys
-- Everything else that it names carries the tag of KEYS[1].
-- Returns {where the next look begins or '', names, {what, name, detail, '1' if mended} per finding}; or, told to mend, what
-- the server will do for nobody (READONLY, OOM, ..), as the call's error
-- O(names + jobs * log n), at most 100 names and 100 jobs in a call, or a page of ZSCAN. Repeated, it finds what is
-- left. A caller that has gone has left nothing half done: each finding is mended in the step that finds it.

local function job_key(_, id)
  turn_to(TAG, '')
  if not is_job(id) then return find('unknown', 'j:' .. id) end
  local job = job_of(id)
  if not job then return end
  local key = own('j:' .. id)
  -- Forgotten on purpose: it says until its end that a job was stored.
  if not job.state and not job.lock and redis.call('PTTL', key) > 0 then return end
  if job.lock then turn_to(TAG, job.lock) end
  if job.waits and not job.direct then
    if not job.lock or not tonumber(job.seq or '') then return find('odd', 'j:' .. id, 'no lock or sequence') end
    if not is_line() or is(own('late'), 'zset') == nil then return end
    if redis.call('ZSCORE', G, id) or redis.call('ZSCORE', own('late'), id) then return end
    return find('no_place', id, NAME, function()
      stand(id, tonumber(job.seq), count(job.bytes))
    end)
  end
  if not job.waits and not ({done = 1, dead = 1, cancelled = 1, expired = 1})[job.state or ''] then
    return find('odd', 'j:' .. id, 'state ' .. (job.state or 'unknown'))
  end
  ends(key, KEPT)
  if job.gone then return end
  local left = redis.call('PTTL', key)
  local index = own(job.state)
  if (job.state == 'done' or job.state == 'dead') and left > 1000 and is(index, 'zset') ~= nil
    and not redis.call('ZSCORE', index, id) then
    find('not_filed', id, job.state, function()
      local bytes = redis.call('STRLEN', own('b:' .. id)) + redis.call('STRLEN', own('r:' .. id))
      redis.call('HINCRBY', F, job.state .. '_bytes', int(0 - unbook(job.state, {id})))
      file_under(job.state, id, left, bytes, 1, job.owner or '')
    end)
  end
end

-- A request is kept for as long as its job may run, and that of a dead one as long as the job.
local function request_key(key, id)
  turn_to(TAG, '')
  local job, odd = job_of(id)
  if odd or redis.call('PTTL', key) ~= -1 or job and job.waits then return end
  find('request', id, job and job.state or '', function() redis.call('PEXPIRE', key, KEPT) end)
end

local function record_key(key)
  ends(key, KEPT)
  turn_to(TAG, '')
  local id = string.match(redis.call('GET', key), '^(%x+) %S+$')
  if not id then return find('odd', name_of(key), 'names no job') end
  if redis.call('EXISTS', own('j:' .. id)) == 0 then return find('record', name_of(key), id) end
  local job = job_of(id)
  if not job or not job.state then return end
  local index = own('n:' .. (job.owner or ''))
  if is(index, 'zset') == nil or redis.call('ZSCORE', index, string.sub(key, #TAG + 3)) then return end
  find('tally', name_of(index), name_of(key), function()
    count_record(key, redis.call('PTTL', key), job.owner or '')
  end)
end

local function line_key(key, name)
  turn_to(TAG, name)
  if not is_line() then return end
  -- Those of the dead are taken out by whoever looks for the first.
  if key == G then
    if not redis.call('ZSCORE', DUE, name) then find('not_due', name, '', function() arm(NOW) end) end
  elseif key == L then
    if is(G, 'zset') == false then ends(key, math.max(redis.call('PTTL', Q), ACCEPT)) end
  elseif key == Q then
    ends(key, 600000)
  else
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    ends(key, tonumber(last) - NOW)
  end
end

local function listing_key(key)
  ends(key, tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) / 1000 - NOW + 1)
end

-- Tombstones and records of an owner, until they end, ms.
local function owned_key(key)
  ends(key, tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) - NOW + 1)
end

local function for_a_day(key) ends(key, KEPT) end
-- The next sign of life gives it the right end.
local function soon_gone(key) ends(key, 60000) end

-- By kind: its type, whether it has a name, and who looks at it.
local KINDS = {
  h = {'zset', true, line_key}, l = {'hash', true, line_key}, q = {'zset', true, line_key},
  g = {'zset', true, line_key}, j = {'hash', true, job_key}, b = {'string', true, request_key},
  r = {'string', true, for_a_day}, i = {'string', true, record_key}, k = {'string', true, for_a_day},
  m = {'string', true, for_a_day}, t = {'string', true, request_key}, o = {'hash', true, for_a_day},
  e = {'zset', true, owned_key}, n = {'zset', true, owned_key},
  meta = {'hash', false, stays}, paused = {'string', false, stays}, workers = {'string', false, stays},
  limiters = {'zset', false, soon_gone},
  due = {'zset', false, stays}, late = {'zset', false, stays}, exp = {'zset', false, stays},
  done = {'zset', false, listing_key}, dead = {'zset', false, listing_key},
  donebytes = {'hash', false, for_a_day}, deadbytes = {'hash', false, for_a_day},
  doneby = {'zset', false, for_a_day}, deadby = {'zset', false, for_a_day},
  doneowners = {'zset', false, for_a_day}, deadowners = {'zset', false, for_a_day}, lates = {'hash', false, stays},
  f = {'hash', false, stays}, watch = {'string', false, stays}, replicas = {'string', false, for_a_day},
  z = {'zset', true, stays}, zl = {'zset', true, stays}, zt = {'hash', true, stays}, zm = {'hash', true, stays},
  zd = {'zset', true, stays}, zw = {'zset', true, stays}, zf = {'hash', true, stays},
  zr = {'string', true, for_a_day}, zp = {'string', true, for_a_day},
}
for _, kind in ipairs({'c', 'cs', 'cg', 'p', 'ps', 'pg'}) do KINDS[kind] = {'string', true, for_a_day} end
-- zu:<queue> has the unique names of those that wait; zu:<queue>@<name> is one that is taken for a time.
local UNIQUE, WINDOW = {'hash', true, stays}, {'string', true, for_a_day}

-- Lines that are in no index are told, so that they are looked at all the same.
function look.keys(_, ...)
  local lines = {}
  for _, key in ipairs({...}) do
    local kind, joint, name = string.match(string.sub(key, #TAG + 1), '^(%a+)(:?)(.*)$')
    local what = KINDS[kind or '']
    if kind == 'zu' then what = string.find(name, '@', 1, true) and WINDOW or UNIQUE end
    if not what or what[2] ~= (joint == ':') then
      if redis.call('EXISTS', key) == 1 then find('unknown', name_of(key)) end
    elseif is(key, what[1]) then
      what[3](key, name)
      if kind == 'g' then lines[#lines + 1] = name end
    end
  end
  return '', lines
end

turn_to(TAG, '')
local next, names = look[ARGV[1]](unpack(ARGV, 3))
tell_changed()
return away or {next, names or {}, unpack(found)}
