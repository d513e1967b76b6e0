-- Prelude of the scripts of task queues.
--
-- Provides: the constants and functions below. Times are in us.
-- Expects: choose_publish_command.lua and server_time.lua in front of it, and in KEYS[1] a key of
-- the queue.
-- Included by: tasks_push.lua, tasks_settle_and_poll.lua, tasks_inspect.lua,
-- tasks_cancel_redrive_purge_pause.lua.
-- A function costs server time for each of its upvalues when it is created, so functions that are
-- rarely needed are created at the place that needs them.
local call, max, min, floor, format = redis.call, math.max, math.min, math.floor, string.format
-- Formats a number that goes to a command, as two integers. Redis would format it as a fraction,
-- which costs as much as a command.
local function integer(number)
  if number < 0 then return format('%.0f', number) end
  local low = number % 1000000000
  local high = (number - low) / 1000000000
  return high > 0 and format('%d%09d', high, low) or format('%d', low)
end
-- MAX_READ_BYTES: limit of the records that one call reads (MAX_BYTES_PER_STEP in Rust), unless a
-- single one is larger. A record is always read whole, even for its header.
local ID_LENGTH, MAX_HISTORY, MAX_READ_BYTES = 22, 8, 4194304
-- Returns the next position in the order of pushes. A last position of more than 1 s ahead is from
-- before the clock was set back, and is ignored.
local function next_sequence(last_sequence)
  if last_sequence > now_us + 1000000 then return now_us end
  return max(last_sequence + 1, now_us)
end
-- Returns the timer worker and the time of the next event that it knows of; nil and 0 if there is
-- none, or its idle time has ended. `text`: '<end of its idle time> <next event> <worker>'.
local function parse_timer_worker(text)
  local deadline_us, event_us, worker = string.match(text or '', '^(%d+) (%d+) (.+)$')
  if not deadline_us or tonumber(deadline_us) <= now_us then return nil, 0 end
  return worker, tonumber(event_us)
end
-- Creates the functions that wake workers: `wake_idle` and `notify_sooner`.
local function make_notifiers(idle_key)
  local channel_prefix = SHARD_CHANNEL_PREFIX or string.match(KEYS[1], '^[^{]*')
  -- In a cluster without shard channels, PUBLISH counts only the subscribers at this cluster node,
  -- so a message with count 0 may have been received. If it was not, the other workers poll when
  -- their idle time ends.
  local may_be_received = IS_CLUSTER and not SHARD_CHANNEL_PREFIX
  -- Sends a wake-up. Returns false if no process can have received it.
  local function notify(worker)
    local node, worker_id = string.match(worker, '^([^:]*):(.*)$')
    return call(PUBLISH_COMMAND, channel_prefix .. 'w:' .. node, 't ' .. worker_id) > 0
      or may_be_received
  end
  -- Wakes one idle worker; returns false if there is none. `entry`: one that was popped already.
  -- O(log idle). A worker is skipped and removed if its idle time has ended, or if its process no
  -- longer listens. Those with an ended idle time come first; one command removes all of them.
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
  -- Wakes the timer worker, or an idle one in its place, for an event that comes before the one
  -- that the timer is set for.
  local function notify_sooner(timer_worker)
    if not (timer_worker and notify(timer_worker)) then wake_idle() end
  end
  return wake_idle, notify_sooner
end
-- Wakes one idle worker. Mostly none is idle while there is work, which one command finds out.
local function wake_idle_worker(idle_key)
  local entry = call('ZPOPMIN', idle_key)
  if entry[1] then make_notifiers(idle_key)(entry) end
end
