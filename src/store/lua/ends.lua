-- How a run's end is written down, for claim.lua and settle.lua. Stands behind jobs.lua.

-- Jobs whose state changed in this call: told in one message, at its end.
local CHANGED = {}
local function changed(id) CHANGED[#CHANGED + 1] = id end
local function tell_changed()
  if #CHANGED > 0 then redis.call(PUBLISH, CHANNEL .. 'e', table.concat(CHANGED, ' ')) end
end

-- Takes a job that has ended out of its line for good: 'done' and 'dead' are kept for ms, 'expired' is counted.
-- `kept`: the bytes that are kept of it.
-- Does what end_job does, in fewer commands, and leaves `due` to those who see what comes next. Its own keys are
-- the caller's. Returns as left_line.
local function finish(id, bytes, kind, ms, owner, kept)
  local v = redis.call('HMGET', F, 'jobs', 'bytes', kind, 'keep')
  local jobs, used, n = tonumber(v[1] or '0'), tonumber(v[2] or '0'), tonumber(v[3] or '0') + 1
  redis.call('HSET', F, 'jobs', math.max(jobs - 1, 0), 'bytes', math.max(used - bytes, 0), kind, n)
  if kind ~= 'expired' then file(own(kind), id, ms, n, kept or bytes, v[4] or nil) end
  uncount_for(owner, id)
  changed(id)
  redis.call('ZREM', G, id)
  return left_line(id, bytes)
end
