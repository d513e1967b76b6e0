-- Ends a run: done with its response, dead with a reason, or back to run again; and begins the next of the line.
--
-- A step of runs.lua. id   me: its run token   verb: 'done' | 'dead' | 'told' | 'retry' | 'back' | 'hand' | 'undo'
-- ms: retention (done, dead, told), delay (retry, back, hand)   reason; of 'done' the response's status, for its call;
-- of 'told' the end that was told (us), the status of the answer or 0, and the reason if it is dead
-- response: stored (done) or ''
-- next: token of the run of the next job, or ''; with `lease` and `keep`, ms, as for claim.lua
-- Returns {'lost'} the run is not the job's any more: nothing was written
--       | {'ok'} the verdict stands | {'claimed', ..} it does, and the next job's run has begun (as claim.lua)
-- 'back' gives the attempt back (no route, an envelope of a newer version, a nested lock that was busy). 'hand' is the
-- same in a drain: the job is for whoever comes next, at once, and so nobody passes it. 'undo' is the same for a claim
-- whose caller has gone; he may not even know which job it was. 'told' is how a call ends, done or dead; if it has
-- another end to tell of by now, it goes back instead: whoever brought that end found it running, and left it to this.
-- O(log n). Needs the job's run token and the lock under it. Repeated with the same tokens: the same answer; what
-- was begun along is found by its token. A repeated call begins nothing: it might be a late one, and the run for
-- nobody.
local ENDS = {done = true, dead = true}

-- The first job, if it is in turn: no live place stands before it, it is not in backoff, a worker watches.
local function in_turn(first)
  if #first == 0 then return nil end
  local place = live_head()
  if place and place < tonumber(first[2]) then return nil end
  if backoff(first[3], first[1]) or not watcher() then return nil end
  return first[1]
end

-- The run of the next job that may have one, and has room in this answer. Those that came too late end here; a dead one is left to a visit,
-- which tells of it.
local function begin_next(first, me, lease, keep)
  for _ = 1, 8 do
    local id = in_turn(first)
    if not id then return nil end
    local facts, envelope = facts_of(id), redis.call('GET', own('b:' .. id))
    local state, reason = unfit(id, facts, envelope)
    if not state and too_much(facts.bytes) then return nil end
    if not state then return run(id, me, lease, facts, envelope, first.more) end
    if state == 'dead' then return nil end
    first = bury(id, facts, envelope, state, reason, keep)
  end
  return nil
end

-- The job has ended with this run. Returns who is first now.
local function ended(id, facts, verb, ms, reason, response)
  local key, status = own('j:' .. id), nil
  if verb == 'done' then reason, status = '', reason end
  redis.call('HSET', key, 'state', verb, 'reason', reason, 'ended', STAMP, 'runs',
    with_run(facts, status and 'done' or reason))
  redis.call('PEXPIRE', key, ms)
  if verb == 'done' then
    redis.call('SET', own('r:' .. id), response, 'PX', ms)
    redis.call('UNLINK', own('b:' .. id))
  else
    redis.call('PEXPIRE', own('b:' .. id), ms)
  end
  if facts.exp then redis.call('ZREM', own('exp'), id) end
  local first = finish(id, facts.bytes, verb, ms, facts.owner, verb == 'done' and #response)
  call_back(id, facts.call, verb == 'dead' and ms, status)
  return first
end

-- The job runs again after a while: it stays at its place and the others wait, or it waits elsewhere and they
-- pass. Returns who is first now.
local function waits(id, facts, verb, ms, reason)
  local key, attempts = own('j:' .. id), facts.attempts
  if verb ~= 'retry' then attempts = math.max(attempts - 1, 0) end
  -- What never began was no run.
  local runs = verb == 'undo' and (facts.runs or '') or with_run(facts, reason)
  redis.call('HSET', key, 'state', 'queued', 'attempts', attempts, 'reason', reason, 'runs', runs)
  if verb == 'back' and reason == 'busy' then redis.call('HINCRBY', key, 'busy', '1') end
  changed(id)
  if (verb == 'retry' or verb == 'back') and redis.call('HGET', key, 'skip') == '1' then
    redis.call('ZREM', G, id)
    put_late(id, NOW + ms, facts.bytes)
    return left_line(id, facts.bytes)
  end
  -- An older one may have come back in front of one that is in backoff itself.
  local backs = other_backs(redis.call('HGET', L, 'back') or nil, id)
  table.insert(backs, 1, int(NOW + ms) .. ' ' .. id)
  backs = table.concat(backs, ' ', 1, math.min(#backs, BACKS))
  redis.call('HSET', L, 'back', backs)
  redis.call('PERSIST', L)
  local first = first_two()
  first[3] = backs
  return first
end

-- The job in this line whose run has this token. A running one stands at the front: only those that come back to
-- an older place can be before it.
local function of_run(me)
  for _, id in ipairs(redis.call('ZRANGE', G, '0', SCAN - 1)) do
    if redis.call('HGET', own('j:' .. id), 'run') == me then return id, facts_of(id) end
  end
  return nil
end

-- What a call's end comes to: verb, ms, reason.
local function told(id, ms, words)
  local at, status, reason = string.match(words, '^(%d+) (%d+) (.*)$')
  local last = string.match(redis.call('HGET', own('j:' .. id), 'end') or '', '^%S+ %d+ (%d+) ')
  if last and last ~= at then return 'back', 1, 'ended again' end
  if status == '0' then return 'dead', ms, reason end
  return 'done', ms, status
end

-- What a call with these tokens has been answered before.
local function repeated(next, lease)
  if next == '' then return {'ok'} end
  local id, facts = of_run(next)
  return id and again(id, next, lease, facts) or {'ok'}
end

local function settle(id, me, verb, ms, reason, response, next, lease, keep)
  local facts = facts_of(id)
  if verb == 'undo' and facts.run ~= me then id, facts = of_run(me) end
  if not id or facts.run ~= me then return {'lost'} end
  if facts.state ~= 'running' then
    -- Nothing of a claim is left to be undone; a copy of it may come yet, and whoever looks for that goes on.
    if verb == 'undo' then return {'lost'} end
    return repeated(next, lease)
  end
  -- Who is in mode x is alone, and h ends with him: if he is there, he is in time.
  if redis.call('ZREM', H, 'h' .. me) == 0 then return {'lost'} end
  if verb == 'told' then verb, ms, reason = told(id, ms, reason) end
  local first
  if ENDS[verb] then
    first = ended(id, facts, verb, ms, reason, response)
  elseif facts.exp and tonumber(facts.exp) <= NOW then
    if verb ~= 'retry' then redis.call('HSET', own('j:' .. id), 'attempts', int(math.max(facts.attempts - 1, 0))) end
    -- What never began was no run.
    if verb ~= 'undo' then redis.call('HSET', own('j:' .. id), 'runs', with_run(facts, reason)) end
    -- It moves the line on: the next one is offered the lock, and not begun here.
    expire_job(id, facts.bytes)
    return {'ok'}
  else
    first = waits(id, facts, verb, ms, reason)
  end
  local begun = next ~= '' and begin_next(first, next, lease, keep)
  if begun then return begun end
  -- The lock is free: moving on says when a worker should look again. Of nobody there is nothing to say.
  if not first.alone then move_on() end
  return {'ok'}
end
