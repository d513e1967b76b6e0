-- What the scripts of task queues share; publish_channel.lua and server_time.lua stand before it. Times are in us.
-- A number that goes to a command is made text first, and by two whole ones: the server would print it as a
-- fraction, which costs it as much as a command does. And each variable that a function has of its surroundings costs
-- when the function is made: those that are rarely needed are made where they are.
local call, max, min, floor, format = redis.call, math.max, math.min, math.floor, string.format
local function integer(number)
  if number < 0 then return format('%.0f', number) end
  local low = number % 1000000000
  local high = (number - low) / 1000000000
  return high > 0 and format('%d%09d', high, low) or format('%d', low)
end
-- BYTES: most of the records that one call reads (MOST_BYTES), unless one alone has more: each is read whole, also where only
-- its head is wanted.
local ID_LENGTH, MAX_HISTORY, MAX_READ_BYTES = 22, 8, 4194304
-- The place of the next one in the order of pushing; one that is far ahead is of a clock that was put back.
local function next_sequence(last_sequence)
  if last_sequence > now_us + 1000000 then return now_us end
  return max(last_sequence + 1, now_us)
end
-- The worker that has the timer of what comes next: whom, what time it knows of, and how long it counts.
local function parse_guard(text)
  local deadline_us, event_us, worker = string.match(text or '', '^(%d+) (%d+) (.+)$')
  if not deadline_us or tonumber(deadline_us) <= now_us then return nil, 0 end
  return worker, tonumber(event_us)
end
-- Those who tell workers: 'wake' and 'tell_sooner'.
local function make_notifiers(idle_key)
  local channel_prefix = SHARD_CHANNEL_PREFIX or string.match(KEYS[1], '^[^{]*')
  -- False if nobody hears it. Of a plain message a node of a cluster knows only those that listen on itself: somebody
  -- may always hear it there, and if nobody did, others look in their time.
  local may_be_heard = IS_CLUSTER and not SHARD_CHANNEL_PREFIX
  local function notify(worker)
    local node, worker_id = string.match(worker, '^([^:]*):(.*)$')
    return call(PUBLISH_COMMAND, channel_prefix .. 'w:' .. node, 't ' .. worker_id) > 0 or may_be_heard
  end
  -- Tells one idle worker to look; false if there is none. O(log idle), whatever the number of workers. One whose
  -- time is over, or whom nobody hears any more, is passed over, and is not among them any more. Those whose time is
  -- over come first, however many: they go at once.
  local function wake_idle(entry)
    for _ = 1, 100 do
      entry = entry or call('ZPOPMIN', idle_key)
      if not entry[1] then return false end
      if tonumber(entry[2]) <= now_us then
        call('ZREMRANGEBYSCORE', idle_key, '-inf', integer(now_us))
      elseif notify(entry[1]) then
        return true
      end
      entry = nil
    end
    return false
  end
  -- Something comes sooner than all that anybody has a timer for.
  local function notify_sooner(guard)
    if not (guard and notify(guard)) then wake_idle() end
  end
  return wake_idle, notify_sooner
end
-- Mostly nobody is idle while there is work.
local function wake_idle_worker(idle_key)
  local entry = call('ZPOPMIN', idle_key)
  if entry[1] then make_notifiers(idle_key)(entry) end
end
