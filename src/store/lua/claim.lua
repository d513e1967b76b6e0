-- A worker's visit to a lock that has jobs: takes the lock for the first job and starts its run.
--
-- A step of runs.lua. id: the job the worker believes is first   me: run token '<nonce>:<node>'   lease, ms
-- keep: retention of dead jobs, ms
-- Returns {'claimed', id, fence, attempt, envelope, accepted at us, 1 = another job stands behind it}
--       | {'busy', ms} held by somebody else until then, or the answer is full | {'later', ms} in backoff
--       | {'moved', id} another job is first now | {'empty'} no jobs here
--       | {'dead', id} it has ended: a crash, its deadline
-- O(log n). The owner while it runs is the run token, never the job's id: a second claim is busy, a
-- repeated one with the same token is the same claim, and once its run is over it is refused. A job
-- stays in g while it runs. One that is found running, and whose token is gone from h, has crashed: its worker
-- died, or was paused past its lease.
-- A number that goes to a command is made text there; this one goes to several.
local STAMP = int(NOW_US)
local FACTS = {'state', 'run', 'attempts', 'bytes', 'at', 'exp', 'began', 'runs', 'owner', 'call'}

-- Longest time between two looks of a worker, whatever it hears, in ms (AMONG_OTHERS in rounds.rs).
local BEAT = 10000

-- Most bytes of requests in one answer, which has to come in time, and those that there are. One goes in any case.
local MOST, TOLD = 4194304, 0
local function too_much(bytes) return TOLD > 0 and TOLD + bytes > MOST end

local function facts_of(id)
  local v, facts = redis.call('HMGET', own('j:' .. id), unpack(FACTS)), {}
  for i, name in ipairs(FACTS) do facts[name] = v[i] or nil end
  facts.attempts, facts.bytes = tonumber(facts.attempts or '0'), tonumber(facts.bytes or '0')
  return facts
end

-- The history with one more run, of which the last twenty are told.
local function with_run(facts, outcome)
  local run = facts.attempts .. ' ' .. (facts.began or '0') .. ' ' .. STAMP .. ' ' .. outcome
  if not facts.runs or facts.runs == '' then return run end
  local runs = facts.runs .. '\n' .. run
  local _, lines = string.gsub(runs, '\n', '')
  return lines < 20 and runs or string.sub(runs, string.find(runs, '\n', 1, true) + 1)
end

local function crashed(key, facts)
  redis.call('HSET', key, 'runs', with_run(facts, 'crashed'))
  redis.call('HINCRBY', key, 'crashes', '1')
end

-- What ends a job instead of a run of it: its state then, and the reason; nil if it may run.
local function unfit(id, facts, envelope)
  if not facts.state or not envelope then return 'dead', 'lost' end
  if facts.state == 'running' then
    local v = redis.call('HMGET', own('j:' .. id), 'again', 'max')
    if v[1] ~= '1' or facts.attempts >= tonumber(v[2] or '1') then return 'dead', 'crashed, may have run' end
  end
  if facts.exp and tonumber(facts.exp) <= NOW then return 'expired', 'deadline' end
  return nil
end

-- Returns who is first now, as finish. What its vanished key would have said of a call is nobody's any more.
local function bury(id, facts, envelope, state, reason, keep)
  local key, request = own('j:' .. id), own('b:' .. id)
  if state == 'expired' then keep = KEPT end
  -- What its vanished key said is what its request still is, or nothing.
  local bytes = facts.state and facts.bytes or #(envelope or '') + redis.call('STRLEN', own('t:' .. id))
  redis.call('ZREM', H, 'j' .. id)
  redis.call('HSET', key, 'state', state, 'reason', reason, 'ended', STAMP, 'lock', NAME)
  if facts.state == 'running' then crashed(key, facts) end
  -- Its last run may still be alive somewhere, only slow: it must learn that its verdict is void.
  redis.call('HDEL', key, 'run')
  redis.call('PEXPIRE', key, keep)
  if state == 'dead' then redis.call('PEXPIRE', request, keep) else redis.call('UNLINK', request) end
  if facts.exp then redis.call('ZREM', own('exp'), id) end
  if not facts.state then redis.call('UNLINK', own('t:' .. id)) end
  local first = finish(id, bytes, state, keep, facts.owner)
  call_back(id, facts.call, state == 'dead' and keep)
  return first
end

-- Starts a run of the first job, whose turn it is.
local function run(id, me, lease, facts, envelope, more)
  local key, attempt = own('j:' .. id), facts.attempts + 1
  -- A repeated claim has a larger one, and is this run: whatever is below the first is an earlier run's.
  local fence = grant(me, 'x', lease)
  redis.call('HSET', key, 'state', 'running', 'run', me, 'attempts', attempt, 'began', STAMP, 'reason', '',
    'fence', fence)
  if facts.state == 'running' then crashed(key, facts) end
  -- What is further away than a beat is found by one before its time; of what comes sooner the watcher has to hear, or
  -- it would have no timer, and others would take this entry for one that has.
  if lease < BEAT then arm(NOW + lease) else redis.call('ZADD', DUE, int(NOW + lease), NAME) end
  changed(id)
  TOLD = TOLD + #envelope
  return {'claimed', id, fence, attempt, envelope, facts.at or '0', more and 1 or 0}
end

-- The run that this token has begun, if it goes on.
local function again(id, me, lease, facts)
  local member = redis.call('ZSCORE', H, 'h' .. me)
  if facts.state ~= 'running' or not member or tonumber(member) <= NOW then return nil end
  local envelope, more = redis.call('GET', own('b:' .. id)), redis.call('ZCARD', G) > 1
  if not envelope then return nil end
  TOLD = TOLD + #envelope
  -- As acquire.lua: a copy that was late shortens nothing.
  lease = math.max(lease, tonumber(member) - NOW)
  return {'claimed', id, grant(me, 'x', lease), facts.attempts, envelope, facts.at or '0', more and 1 or 0}
end

-- What is in the way of the first job; nil if nothing is. A visit has to move what is due, or it would be due at
-- once again.
local function in_its_way(id, seq, back)
  -- Mostly there is neither a holder nor a place: one look for both.
  local none = redis.call('EXISTS', H, Q) == 0
  local last = not none and held_until() or nil
  local later = backoff(back, id)
  if later then
    redis.call('ZADD', DUE, int(later), NAME)
    move_on()
    return {'later', int(later - NOW)}
  end
  if none then return nil end
  local offered = last and redis.call('ZSCORE', H, 'j' .. id)
  if last and not offered then
    redis.call('ZADD', DUE, int(last), NAME)
    return {'busy', int(last - NOW)}
  end
  local place = not offered and live_head()
  if place and place < seq then
    -- A live place stands before the job: a worker's visit moves the line on for it too.
    redis.call('ZADD', DUE, int(NOW + ACCEPT), NAME)
    move_on()
    return {'busy', int(ACCEPT)}
  end
  if offered then redis.call('ZREM', H, 'j' .. id) end
  return nil
end

local function claim(id, me, lease, keep)
  local first = redis.call('ZRANGE', G, '0', '1', 'WITHSCORES')
  if #first == 0 then
    -- Also where g itself has vanished: what was kept for it must not stay for ever.
    redis.call('ZREM', DUE, NAME)
    unpark()
    return {'empty'}
  end
  -- What was accepted runs also without room, and makes some: see renew.lua.
  redis.call('ZREM', H, '')
  local v, facts = redis.call('HMGET', L, 'park', 'back'), first[1] == id and facts_of(id)
  -- It goes with the next call. Nothing has been touched: the line is due as it was.
  if facts and facts.run ~= me and too_much(facts.bytes) then return {'busy', 1} end
  if v[1] then redis.call('HDEL', L, 'park') end
  if not facts then
    -- An older job has come back in front of a run that goes on: a repeated claim is that run's all the same, or it
    -- would be nobody's.
    local begun = redis.call('ZSCORE', H, 'h' .. me) and facts_of(id)
    return begun and begun.run == me and again(id, me, lease, begun) or {'moved', first[1]}
  end
  -- A token starts one run. It comes again, late, after that run was settled, given back or lost: nobody
  -- waits for this answer, and nobody would execute another run.
  if facts.run == me then return again(id, me, lease, facts) or {'busy', int(ACCEPT)} end
  local not_now = in_its_way(id, tonumber(first[2]), v[2])
  if not_now then return not_now end
  -- The backoff is over.
  forget_back(v[2] or nil, id)
  local envelope = redis.call('GET', own('b:' .. id))
  local state, reason = unfit(id, facts, envelope)
  if not state then return run(id, me, lease, facts, envelope, first[3]) end
  bury(id, facts, envelope, state, reason, keep)
  -- The lock is free: moving on says when a worker should look again.
  move_on()
  return {'dead', id}
end
