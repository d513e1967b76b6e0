-- Stores deferred requests behind the locks they found busy, each a step of its own, in the order they came. A
-- lock is looked at again here, in the same step, so nothing can fall between "busy" and "queued".
--
-- KEYS per job: h of its lock (line.lua); with a fingerprint also its idempotency record
-- ARGV per job: its id; envelope; terms, in one text: letters, and numbers divided by blanks. Then what these letters
-- say that there is: p fingerprint of the request, with Idempotency-Key; o owner (tenant); f or l: it is merged with
-- others of a group, of which the first or the last wins: the group; c who is told of its end: id, most attempts
-- and lock of that job, a newline, its request
-- Numbers: may it run again after a crash, most attempts, may others pass it while it waits for a retry, is a
-- worker needed, ms until it may run, ms until its deadline or 0, life of the record in ms, most jobs and most bytes
-- of this resource, most jobs and most bytes of this shard, and of this owner in it, most bytes that the shard keeps
-- of done jobs, and of dead ones, most idempotency records of this owner in the shard. A part of the shard is reserved
-- (see RESERVED). The bytes of a request are with those of the call that tells of its end
-- Other keys of the tag are named here: k:<group>:<lock> STRING, the latest job of a group (until a day after it may run), and m:<id>
-- STRING, the job that the request <id> was merged into (for a minute).
-- Returns per job {'stored', position, 0 if it is late} | {'known', job id} accepted before, the same request
--       | {'mismatch'} the key was used for another request | {'full'} over a cap, nothing stored
--       | {'keys', ms} the owner has as many records as it may, until the first of them ends; nothing stored
--       | {'unmanned'} nobody watches the shard, nothing stored | {'merged', job id} into one that waits
--       | {'error', text}: a step that fails harms no other
-- At most 16 jobs. O(jobs * log n). Idempotent by job id; a refusal leaves no trace, so a copy that comes when there is
-- room is stored: whoever sent more than one takes it for an unknown outcome. A job has no TTL while it waits: g or late
-- is its index, due.lua walks both.
local GROUP, MERGED = 86400000, 60000
-- Jobs of an owner that are looked at.
local LOOKS = 16
-- Records that end with a job: its own, and those of requests that were merged into it.
local RECORDS = 32

-- The name of a lock says in which shard it lies, so a client can choose names that fill the shard of another one. This part
-- of a shard's jobs and bytes, a quarter, is reserved: for locks with fewer than SHORT jobs and owners with fewer than FEW. A
-- job without an owner may be of that client; it gets half of the reserve.
local RESERVED, HALF = 4, 8
local SHORT, FEW = 4, 16
-- Parts of the shard's bytes that such a lock and such an owner have with the new job, unless it is their first.
local SHORT_BYTES, FEW_BYTES = 64, 16
-- Nothing is reserved of fewer jobs or bytes.
local LEAST_JOBS, LEAST_BYTES = 64, 1048576

-- From 1; 0 = late; nil = it does not wait.
local function position(id)
  local rank = redis.call('ZRANK', G, id)
  if rank then return rank + 1 end
  return redis.call('ZSCORE', own('late'), id) and 0 or nil
end

-- What was made of the request before; nil if it is new.
local function accepted(id, facts, record, print, merge)
  if redis.call('EXISTS', facts) == 1 then return {'stored', position(id) or 1} end
  if merge ~= '' then
    local other = redis.call('GET', own('m:' .. id))
    if other then return {'merged', other} end
  end
  local text = print ~= '' and redis.call('GET', record)
  if not text then return nil end
  local known, old = string.match(text, '^(%S+) (%S+)$')
  if settle_crashed(record, known) then return nil end
  -- Of a request that ran at once the fingerprint is known when it has ended, if its handler has read all of it.
  if old == print or old == '-' then return {'known', known} end
  return {'mismatch'}
end

-- The job that waits and is of this group, and its bytes; nil if there is none. One whose time is over ends here: where
-- no worker has seen to that yet, the new one would end with it.
local function one_of(group)
  local id = redis.call('GET', group)
  if not id then return nil end
  local v = redis.call('HMGET', own('j:' .. id), 'state', 'bytes', 'exp')
  if v[1] ~= 'queued' or not position(id) then return nil end
  if v[3] and tonumber(v[3]) <= NOW then return expire_job(id, tonumber(v[2] or '0')) end
  return id, tonumber(v[2] or '0')
end

-- A request was merged into a job. Its record is there as long as that waits, as the job's own is; of more than a few for
-- its own time alone: what is written on a job has its bounds.
local function join(id, record, print, life, owner)
  local facts = own('j:' .. id)
  local text = redis.call('HGET', facts, 'record') or ''
  local _, others = string.gsub(text, '%S+ %d+', '')
  if others < RECORDS then
    local name = string.sub(record, #SHARD + 3, -#NAME - 2) .. ' ' .. int(NOW + life)
    redis.call('HSET', facts, 'record', text == '' and name or text .. ' ' .. name)
    -- There is more to its end than usual.
    redis.call('HSETNX', facts, 'call', '-')
    life = math.max(life, PENDING)
  end
  put_record(record, id .. ' ' .. print, life, owner)
end

-- Whether a shard that has so much takes the job without this part of its room. One that takes the place of another needs
-- room only for the bytes that it has more.
local function leaves(part, jobs, used, more, old, n)
  local function but_for(most, least) return most < least and most or most - math.floor(most / part) end
  return (old or jobs < but_for(n[10], LEAST_JOBS)) and (more <= 0 or used + more <= but_for(n[11], LEAST_BYTES))
end

-- Whether it fits into a shard that has so much, if those of `old` bytes go at the same time; how many are in line; true if
-- it needs room that is reserved.
local function fits_in(owner, bytes, old, n, jobs, used)
  local lates = redis.call('HMGET', own('lates'), 'n' .. NAME, 'b' .. NAME)
  local one, more, line = old and 1 or 0, bytes - (old or 0), redis.call('ZCARD', G)
  local here = line + tonumber(lates[1] or '0') - one
  local bytes_here = tonumber(redis.call('HGET', L, 'bytes') or '0') + tonumber(lates[2] or '0') + more
  local fits = jobs - one < n[10] and used + more <= n[11] and here < n[8] and bytes_here <= n[9]
  if not fits or leaves(RESERVED, jobs, used, more, old, n) then return fits, line end
  return here < SHORT and (here == 0 or bytes_here <= n[11] / SHORT_BYTES)
    and (owner ~= '' or leaves(HALF, jobs, used, more, old, n)), line, true
end

-- Whether it fits into what its owner may have here, of the reserve too if it needs that. Jobs whose keys have vanished do not
-- count, nor those that were found so and ended without their owner's name: a few are looked at where it matters.
local function fits_owner(owner, bytes, old, n, reserve)
  if owner == '' then return true end
  local key = own('o:' .. owner)
  local function fits()
    local jobs, used = math.max(redis.call('HLEN', key) - 1, 0), tonumber(redis.call('HGET', key, '') or '0')
    jobs, used = jobs - (old and 1 or 0), used + bytes - (old or 0)
    if reserve and (jobs >= FEW or jobs > 0 and used > n[11] / FEW_BYTES) then return false end
    return jobs < n[12] and used <= n[13]
  end
  if fits() then return true end
  for _, id in ipairs(redis.call('HRANDFIELD', key, LOOKS)) do
    local state = id == '' or redis.call('HGET', own('j:' .. id), 'state')
    if id ~= '' and state ~= 'queued' and state ~= 'running' then uncount_for(owner, id) end
  end
  return fits()
end

local function write(id, facts, request, envelope, bytes, owner, record, call, n, seq)
  local v = {'state', 'queued', 'lock', NAME, 'seq', int(seq), 'bytes', bytes, 'at', int(NOW_US), 'max', n[2]}
  local function add(name, value)
    v[#v + 1] = name
    v[#v + 1] = value
  end
  if n[1] == 1 then add('again', 1) end
  if n[3] == 1 then add('skip', 1) end
  if owner ~= '' then add('owner', owner) end
  if record then add('record', string.sub(record, #SHARD + 3, -#NAME - 2) .. ' ' .. int(NOW + n[7])) end
  if n[6] > 0 then
    add('exp', int(NOW + n[6]))
    remind(own('exp'), id, NOW + n[6])
  end
  if call ~= '' then
    local head = string.find(call, '\n', 1, true)
    add('call', string.sub(call, 1, head - 1))
    redis.call('SET', own('t:' .. id), string.sub(call, head + 1))
  elseif record then
    -- There is more to its end than usual.
    add('call', '-')
  end
  redis.call('HSET', facts, unpack(v))
  redis.call('SET', request, envelope)
end

-- Whether a worker watches the shard, or is about to: who did may have left it to one that lives.
local function manned()
  local til = string.match(redis.call('GET', WATCH) or '', '^(%d+):')
  return til and tonumber(til) > NOW
end

-- The numbers of the terms, of which those of jobs that go together are mostly the same.
local TERMS = '^%l*' .. string.rep(' (%d+)', 15) .. '$'
local read, numbers
local function numbers_of(terms)
  if terms ~= read then
    read, numbers = terms, {string.match(terms, TERMS)}
    for i, text in ipairs(numbers) do numbers[i] = tonumber(text) end
  end
  return numbers
end

local function enqueue(id, envelope, terms, record, print, owner, merge, call)
  local facts, request, n = own('j:' .. id), own('b:' .. id), numbers_of(terms)
  local before = accepted(id, facts, record, print, merge)
  if before then return before end
  if n[4] == 1 and not manned() then return {'unmanned'} end
  local group, old, old_bytes
  if merge ~= '' then
    group = own('k:' .. string.sub(merge, 2) .. ':' .. NAME)
    old, old_bytes = one_of(group)
    if old and string.sub(merge, 1, 1) == 'f' then
      local full = print ~= '' and records_full(owner, n[15])
      if full then return {'keys', int(full)} end
      redis.call('SET', own('m:' .. id), old, 'PX', MERGED)
      if print ~= '' then join(old, record, print, n[7], owner) end
      return {'merged', old}
    end
  end
  local bytes = #envelope + #call - (string.find(call, '\n', 1, true) or 0)
  local shard = redis.call('HMGET', F, 'jobs', 'bytes', 'seq')
  local jobs, used = tonumber(shard[1] or '0'), tonumber(shard[2] or '0')
  local fits, line, reserve = fits_in(owner, bytes, old_bytes, n, jobs, used)
  if not fits or not fits_owner(owner, bytes, old_bytes, n, reserve) then return {'full'} end
  local full = print ~= '' and records_full(owner, n[15])
  if full then return {'keys', int(full)} end

  -- As next_seq, in the same call as the rest: each is a tenth of what a request costs here.
  local seq = math.max(tonumber(shard[3] or '0') + 1, NOW_US)
  redis.call('HSET', F, 'jobs', int(jobs + 1), 'bytes', int(used + bytes), 'seq', int(seq), 'keep', int(n[14]))
  write(id, facts, request, envelope, bytes, owner, record, call, n, seq)
  count_for(owner, id, bytes)
  if print ~= '' then put_record(record, id .. ' ' .. print, math.max(n[7], PENDING), owner) end
  if group then redis.call('SET', group, id, 'PX', int(GROUP + n[5])) end
  -- Rounded up: it must not run before.
  if n[5] > 0 then put_late(id, math.ceil(NOW_US / 1000) + n[5], bytes) else stand(id, seq, bytes) end
  if old then
    drop_job(old, old_bytes, 'cancelled', 'superseded', KEPT, id)
    return {'stored', position(id) or 1}
  end
  -- The newest sequence is the last of its line.
  return {'stored', n[5] > 0 and 0 or line + 1}
end

local SERVER = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
local out, k, a = {}, 1, 0
while ARGV[a + 1] do
  local id, envelope, terms = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local letters, record, print, owner, merge, call = string.match(terms, '^%l*'), nil, '', '', '', ''
  at(KEYS[k])
  k, a = k + 1, a + 3
  local function next_arg()
    a = a + 1
    return ARGV[a]
  end
  for i = 1, #letters do
    local letter = string.sub(letters, i, i)
    if letter == 'p' then
      record, print, k = KEYS[k], next_arg(), k + 1
    elseif letter == 'o' then
      owner = next_arg()
    elseif letter == 'c' then
      call = next_arg()
    else
      merge = letter .. next_arg()
    end
  end
  local well, answer = pcall(enqueue, id, envelope, terms, record, print, owner, merge, call)
  if not well then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- What is wrong with the server is wrong for all of them.
    for _, code in ipairs(SERVER) do
      local from = string.find(text, code, 1, true)
      if from then return redis.error_reply(string.sub(text, from)) end
    end
    answer = {'error', text}
  end
  out[#out + 1] = answer
end
return out
