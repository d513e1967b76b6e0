-- How jobs leave their line: what claim, settle, cancel and due share, after line.lua and jobs.lua.
--
-- Most dead jobs that a shard keeps: a job that fails for ever must not fill the server.
local DEAD = 10000
local CHANGED, FILED = {}, 0

-- Jobs whose state changed in this call, told in one message at its end.
local function changed(id) CHANGED[#CHANGED + 1] = id end
local function tell_changed()
  if #CHANGED > 0 then redis.call('PUBLISH', CHANNEL .. 'e', table.concat(CHANGED, ' ')) end
  CHANGED = {}
end

-- A job is out of g: what l kept for it goes. Returns who is first now, with its sequence.
local function left_line(id, bytes)
  local first = redis.call('ZRANGE', G, 0, 0, 'WITHSCORES')
  if #first > 0 then
    local v = redis.call('HMGET', L, 'bytes', 'back')
    redis.call('HSET', L, 'bytes', int(math.max(tonumber(v[1] or '0') - bytes, 0)))
    -- A backoff is that job's own and ends with it.
    if v[2] and string.match(v[2], ' (%x+)$') == id then redis.call('HDEL', L, 'back') end
    return first
  end
  redis.call('ZREM', DUE, NAME)
  -- Only places are left in l, if anything: it goes with them.
  local left = redis.call('PTTL', Q)
  if left > 0 then
    redis.call('HDEL', L, 'park', 'back', 'bytes')
    redis.call('PEXPIRE', L, left)
  else
    redis.call('UNLINK', L)
  end
  return first
end

-- Forgets jobs of an index that their keys' TTL has taken away, and the oldest dead one beyond the cap.
local function trim(index, kind)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', int(NOW_US), 'LIMIT', 0, SCAN)
  if #old > 0 then redis.call('ZREM', index, unpack(old)) end
  if kind == 'dead' and redis.call('ZCARD', index) > DEAD then
    local oldest = redis.call('ZPOPMIN', index)[1]
    redis.call('UNLINK', own('j:' .. oldest), own('b:' .. oldest))
  end
end

-- Files an ended job for ms, as the n-th. Scores are microseconds, each its own, so that a page of a list can
-- go on behind any of them. The index lives a little longer than it must: most jobs then need not prolong it.
local function file(id, kind, ms, n)
  local index = own(kind)
  FILED = FILED + 1
  redis.call('ZADD', index, int(NOW_US + ms * 1000 + FILED), id)
  if redis.call('PTTL', index) < ms + 1 then redis.call('PEXPIRE', index, int(ms + ms / 8 + 1)) end
  if kind == 'dead' or n % 16 == 0 then trim(index, kind) end
end

-- Takes a job that has ended out of its line, or from where it waits for one, for good; it is kept for ms, as
-- `done` or `dead`. `as`: what it is counted as besides. Its own keys are the caller's. Returns who is first
-- now, with its sequence.
local function finish(id, bytes, kind, ms, as)
  local v = redis.call('HMGET', F, 'jobs', 'bytes', kind)
  local jobs, used, n = tonumber(v[1] or '0'), tonumber(v[2] or '0'), tonumber(v[3] or '0') + 1
  redis.call('HSET', F, 'jobs', int(math.max(jobs - 1, 0)), 'bytes', int(math.max(used - bytes, 0)), kind, int(n))
  if as then redis.call('HINCRBY', F, as, 1) end
  file(id, kind, ms, n)
  changed(id)
  if redis.call('ZREM', G, id) == 0 then
    redis.call('ZREM', own('late'), id)
    return redis.call('ZRANGE', G, 0, 0, 'WITHSCORES')
  end
  return left_line(id, bytes)
end

-- A job waits outside of its line until then. The watcher is told if nothing comes due sooner.
local function put_off(id, bytes, at)
  redis.call('ZADD', own('late'), int(at), id)
  if redis.call('ZRANGE', own('late'), 0, 0)[1] ~= id then return end
  local node = watcher()
  if node then redis.call('PUBLISH', CHANNEL .. 'w:' .. node, 'd ' .. NAME) end
end

-- A job whose deadline has passed before it ran: it is kept for ms. Returns as finish.
local function expire(id, bytes, ms)
  redis.call('HSET', own('j:' .. id), 'state', 'expired', 'reason', 'deadline', 'ended', int(NOW_US))
  redis.call('HDEL', own('j:' .. id), 'run')
  redis.call('PEXPIRE', own('j:' .. id), int(ms))
  redis.call('UNLINK', own('b:' .. id))
  redis.call('ZREM', own('exp'), id)
  redis.call('ZREM', H, 'j' .. id)
  return finish(id, bytes, 'done', ms, 'expired')
end
