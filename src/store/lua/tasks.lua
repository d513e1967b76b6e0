-- What the scripts of task queues share; channel.lua and now.lua stand before it. Times are in us.
-- A number that goes to a command is made text first, and by two whole ones: the server would print it as a
-- fraction, which costs it as much as a command does. And each variable that a function has of its surroundings costs
-- when the function is made: those that are rarely needed are made where they are.
local call, max, min, floor, format = redis.call, math.max, math.min, math.floor, string.format
local function int(n)
  if n < 0 then return format('%.0f', n) end
  local low = n % 1000000000
  local high = (n - low) / 1000000000
  return high > 0 and format('%d%09d', high, low) or format('%d', low)
end
-- BYTES: most of the records that one call reads (MOST_BYTES), unless one alone has more: each is read whole, also where only
-- its head is wanted.
local ID, HISTORY, BYTES = 22, 8, 4194304
-- The place of the next one in the order of pushing; one that is far ahead is of a clock that was put back.
local function place_after(last)
  if last > now + 1000000 then return now end
  return max(last + 1, now)
end
-- The worker that has the timer of what comes next: whom, what time it knows of, and how long it counts.
local function guard_of(text)
  local til, event, who = string.match(text or '', '^(%d+) (%d+) (.+)$')
  if not til or tonumber(til) <= now then return nil, 0 end
  return who, tonumber(event)
end
-- Those who tell workers: 'wake' and 'tell_sooner'.
local function tellers(idle)
  local channel = OWN or string.match(KEYS[1], '^[^{]*')
  -- False if nobody hears it. Of a plain message a node of a cluster knows only those that listen on itself: somebody
  -- may always hear it there, and if nobody did, others look in their time.
  local unsure = APART and not OWN
  local function tell(who)
    local node, worker = string.match(who, '^([^:]*):(.*)$')
    return call(PUBLISH, channel .. 'w:' .. node, 't ' .. worker) > 0 or unsure
  end
  -- Tells one idle worker to look; false if there is none. O(log idle), whatever the number of workers. One whose
  -- time is over, or whom nobody hears any more, is passed over, and is not among them any more. Those whose time is
  -- over come first, however many: they go at once.
  local function wake(first)
    for _ = 1, 100 do
      first = first or call('ZPOPMIN', idle)
      if not first[1] then return false end
      if tonumber(first[2]) <= now then
        call('ZREMRANGEBYSCORE', idle, '-inf', int(now))
      elseif tell(first[1]) then
        return true
      end
      first = nil
    end
    return false
  end
  -- Something comes sooner than all that anybody has a timer for.
  local function tell_sooner(guard)
    if not (guard and tell(guard)) then wake() end
  end
  return wake, tell_sooner
end
-- Mostly nobody is idle while there is work.
local function wake_one(idle)
  local first = call('ZPOPMIN', idle)
  if first[1] then tellers(idle)(first) end
end
