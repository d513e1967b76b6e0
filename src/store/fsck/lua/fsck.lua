-- What is looked for in a shard, one job or one lock at a time. Stands behind line.lua, kept.lua, jobs.lua, ends.lua and
-- claim.lua, before fsck_shard.lua and fsck_keys.lua; how it is called is told there.
--
-- A look is atomic and reads all that it compares: what a fleet at work does between two looks is not seen as a
-- fault. It changes nothing unless it is told to mend, and then only what it understands: where a key is of another
-- type or a fact is none that any script writes, it is told of, and left. No mending ends a job that can still run.
--
-- TAG     what every key of the shard begins with
-- MEND    whether to mend
-- found   rows {what, name, detail, '1' if it was mended}: what is one of the words of `FindingKind`
local TAG, MEND = string.match(KEYS[1], '^(.*}:)'), ARGV[2] == '1'
local found = {}
-- How long somebody who is due may let wait for him, ms; and until when an orphan is a fleet's own business: as long
-- as a dead worker's watch, and what its successor needs.
local SLACK, GRACE = 10000, 60000

-- What the server will not do for anybody, as it has answered: nothing is mended then, and it is the call's answer.
local away

-- Notes what is wrong. One that can not be mended stays as it is.
local function find(what, name, detail, mender)
  local mended, fault = false, nil
  if MEND and mender then mended, fault = pcall(mender) end
  if fault and not mended then
    local text = type(fault) == 'table' and fault.err or tostring(fault)
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local from = string.find(text, code, 1, true)
      if from then away = redis.error_reply(string.sub(text, from)) end
    end
  end
  found[#found + 1] = {what, name, detail or '', mended and '1' or '0'}
end

local function name_of(key) return string.sub(key, #TAG + 1) end

-- Whether a key is there and of this type; nil if it is of another.
local function is(key, want)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return false end
  if kind == want then return true end
  find('type', name_of(key), kind)
  return nil
end

-- Whether all keys of the line are of their types: only then is anything of it mended, or a mending might stop
-- half-way.
local function is_line()
  local well = true
  for key, want in pairs({[H] = 'zset', [L] = 'hash', [Q] = 'zset', [G] = 'zset', [DUE] = 'zset', [F] = 'hash'}) do
    if is(key, want) == nil then well = false end
  end
  return well
end

-- A key that must stay, because something waits for it.
local function stays(key)
  if redis.call('PTTL', key) < 0 then return end
  find('has_end', name_of(key), '', function() redis.call('PERSIST', key) end)
end

-- A key that must end by itself.
local function ends(key, ms)
  if redis.call('PTTL', key) ~= -1 then return end
  find('no_end', name_of(key), '', function() redis.call('PEXPIRE', key, int(math.max(ms, 1))) end)
end

-- A number that was written; `odd` if it is none, which no sum is.
local function count(text, odd) return tonumber(text or '0') or odd or 0 end

local function is_job(id) return #id == 34 and string.find(id, '^%x+$') ~= nil end

local JOB = {'state', 'lock', 'run', 'bytes', 'exp', 'again', 'max', 'attempts', 'direct', 'seq', 'gone', 'owner'}
-- What is known of a job; nil if that is nothing, or of another type.
local function job_of(id)
  local there = is(own('j:' .. id), 'hash')
  if not there then return nil, there == nil end
  local v, job = redis.call('HMGET', own('j:' .. id), unpack(JOB)), {}
  for i, name in ipairs(JOB) do job[name] = v[i] or nil end
  job.waits = job.state == 'queued' or job.state == 'running'
  return job, false
end

-- When the last of those who are in ends, without a look's taking anybody out.
local function held_till()
  local last = redis.call('ZRANGE', H, -1, -1, 'WITHSCORES')
  return last[2] and tonumber(last[2]) > NOW and tonumber(last[2]) or nil
end

-- The job can not run any more: it is dead, and the next one is looked at.
local function give_up(id, reason)
  bury(id, facts_of(id), redis.call('GET', own('b:' .. id)), 'dead', reason, KEPT)
  if redis.call('EXISTS', G) == 1 then redis.call('ZADD', DUE, int(NOW), NAME) end
  move_on()
end

-- What a job that waits or runs needs: its keys without an end, its request, its deadline in the index.
local function look_at_keys(id, job)
  stays(own('j:' .. id))
  if is(own('b:' .. id), 'string') then stays(own('b:' .. id)) end
  local exp = tonumber(job.exp or '')
  if exp and exp > NOW + 1000 and not redis.call('ZSCORE', own('exp'), id) then
    find('no_deadline', id, '', function() redis.call('ZADD', own('exp'), int(exp), id) end)
  end
end

-- A run whose lock is gone. A visit sees to it as soon as it is due; here it is one that is not, or that nobody has
-- come for.
local function look_at_run(id, job)
  local held = job.run and redis.call('ZSCORE', H, 'h' .. job.run)
  if held and tonumber(held) > NOW then return true end
  local due = tonumber(redis.call('ZSCORE', DUE, NAME) or '')
  local comes = due and due > NOW - GRACE and due <= math.max(held_till() or NOW, NOW) + SLACK
  if comes then return false end
  local runs = job.again == '1' and count(job.attempts) < count(job.max)
  find('orphan', id, NAME, function()
    -- One that may run again does so at the next visit.
    if runs then arm(NOW) else give_up(id, 'crashed, may have run') end
  end)
  return false
end

-- A job of the line, at its place.
local function look_at_job(id)
  if not is_job(id) then return find('odd', name_of(G), id) end
  local job, odd = job_of(id)
  if odd then return end
  if not job then
    return find('no_job', id, NAME, function() give_up(id, 'lost') end)
  end
  if job.lock ~= NAME then return find('odd', id, 'in the line of another lock') end
  local bytes = count(job.bytes)
  if not job.waits then
    return find('ended', id, NAME, function()
      redis.call('ZREM', G, id)
      left_line(id, bytes)
    end)
  end
  if redis.call('ZSCORE', own('late'), id) then
    find('twice', id, NAME, function() take_late(id, bytes) end)
  end
  look_at_keys(id, job)
  local runs = job.state == 'running' and look_at_run(id, job)
  -- Who runs it has its request.
  if not runs and redis.call('EXISTS', own('b:' .. id)) == 0 then
    find('no_request', id, NAME, function() give_up(id, 'lost') end)
  end
end

-- When somebody looks at a lock that has jobs; and one that has none is not looked at.
local function look_at_due()
  local due = tonumber(redis.call('ZSCORE', DUE, NAME) or '')
  local first = redis.call('ZRANGE', G, 0, 0)[1]
  if not first then
    if not due then return end
    return find('due_idle', NAME, '', function()
      redis.call('ZREM', DUE, NAME)
      unpark()
    end)
  end
  local function soon() arm(NOW) end
  if not due then return find('not_due', NAME, '', soon) end
  local back = backoff(redis.call('HGET', L, 'back'), first)
  -- Whoever holds it moves its line on in the end. Free, it waits for that look.
  if not held_till() and due > (back or NOW) + SLACK then
    find('due_late', NAME, 'in ' .. int(due - NOW) .. ' ms', soon)
  end
end

-- The bytes of a line of not too many jobs.
local function look_at_bytes(ids)
  local sum, kept = 0, count(redis.call('HGET', L, 'bytes') or nil, -1)
  for _, id in ipairs(ids) do
    if redis.call('TYPE', own('j:' .. id)).ok ~= 'hash' then return end
    sum = sum + count(redis.call('HGET', own('j:' .. id), 'bytes') or nil)
  end
  if sum == kept then return end
  find('tally', name_of(L), 'bytes ' .. int(kept) .. ', there are ' .. int(sum), function()
    redis.call('HSET', L, 'bytes', int(sum))
  end)
end
