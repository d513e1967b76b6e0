-- What the scripts of task queues share; channel.lua and now.lua stand before it. Times are in us.
local call, max, min, floor = redis.call, math.max, math.min, math.floor
local function int(n) return string.format('%.0f', n) end
local ID, HISTORY = 22, 8
-- False if nobody hears it. Of a plain message a node of a cluster knows only those that listen on itself: somebody may
-- always hear it there, and if nobody did, others look in their time.
local UNSURE = APART and not OWN
local function tell(who, channel)
  local node, worker = string.match(who, '^([^:]*):(.*)$')
  return call(PUBLISH, (OWN or channel) .. 'w:' .. node, 't ' .. worker) > 0 or UNSURE
end
-- Tells one idle worker to look; false if there is none. O(log idle), whatever the number of workers. One whose
-- time is over, or whom nobody hears any more, is passed over, and is not among them any more.
local function wake(idle, channel)
  for _ = 1, 100 do
    local first = call('ZPOPMIN', idle)
    if not first[1] then return false end
    if tonumber(first[2]) > now and tell(first[1], channel) then return true end
  end
  return false
end
-- The worker that has the timer of what comes next: whom, what time it knows of, and how long it counts.
local function guard_of(text)
  local til, event, who = string.match(text or '', '^(%d+) (%d+) (.+)$')
  if not til or tonumber(til) <= now then return nil, 0 end
  return who, tonumber(event)
end
-- Something comes sooner than all that anybody has a timer for.
local function tell_sooner(idle, guard, channel)
  if not (guard and tell(guard, channel)) then wake(idle, channel) end
end
-- The place of the next one in the order of pushing; one that is far ahead is of a clock that was put back.
local function place_after(last)
  if last > now + 1000000 then return now end
  return max(last + 1, now)
end
