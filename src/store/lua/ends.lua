-- How a run's end is written down, for claim.lua and settle.lua. Stands behind jobs.lua.

-- Jobs whose state changed in this call: told in one message, at its end.
local CHANGED = {}
local function changed(id) CHANGED[#CHANGED + 1] = id end
local function tell_changed()
  if #CHANGED > 0 then redis.call(PUBLISH, CHANNEL .. 'c', table.concat(CHANGED, ' ')) end
end

-- Takes a job that has ended out of its line for good: 'done' and 'dead' are kept for ms, 'expired' is counted.
-- `kept`: the bytes that are kept of it.
-- Does what end_job does, in fewer commands, and leaves `due` to those who see what comes next. Its own keys are
-- the caller's. Returns as left_line.
local function finish(id, bytes, kind, ms, owner, kept)
  local v = redis.call('HMGET', F, 'jobs', 'bytes', kind, 'keep', kind .. '_bytes')
  local jobs, used, n = tonumber(v[1] or '0'), tonumber(v[2] or '0'), tonumber(v[3] or '0') + 1
  jobs, used = math.max(jobs - 1, 0), math.max(used - bytes, 0)
  -- As in uncount.
  if jobs == 0 then used = 0 end
  if kind == 'expired' then
    redis.call('HSET', F, 'jobs', jobs, 'bytes', used, kind, n)
  else
    local sum = file(kind, id, ms, n, kept or bytes, owner or '', v[5] or nil, v[4] or nil)
    redis.call('HSET', F, 'jobs', jobs, 'bytes', used, kind, n, kind .. '_bytes', sum)
  end
  uncount_for(owner, id)
  changed(id)
  redis.call('ZREM', G, id)
  return left_line(id, bytes)
end
