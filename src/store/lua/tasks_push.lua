-- Stores tasks. Consecutive tasks of one queue form a group.
--
-- Input, per group:
--   KEYS  waiting tasks of the queue (ZSET `z`)
--   KEYS  push numbers of this process in the shard (STRING `zp`)
--   KEYS  per task with a unique window: its key `zu:<queue>@<unique>` (STRING)
--   ARGV  '<number of tasks> <most waiting tasks> <most bytes>'
--   ARGV  then, per task:
--           id
--           '<push number> <slot> <delay us> <kind>'; the kind is '-' without a unique key, 'p' if
--             it is unique while the task is pending, 'w<ms>' if it is unique in a window
--           unique key, unless the kind is '-'
--           record, without its first part, the time of the push
-- The other keys of the queue are derived from the first: a declared key costs as much as that.
-- Output: one letter per task:
--   '1'  stored
--   'f'  refused: the queue is full
--   'k'  refused: another task has the unique key
--   '?'  unknown: a newer push has its slot, and the task is not stored (any more)
--   '!'  failed: the keys of the queue hold other data
-- It is one text; with any 'k', an array of that text and the ids of the other tasks, in order.
-- A condition of the server (READONLY, OOM, ...) is the error of the whole call: nothing is stored.
-- Complexity: O(tasks * log n), at most 100 tasks.
-- Idempotent: `zp` keeps the numbers of the process's last pushes, each in its slot. A push that is
-- sent again is not stored again, even if its task has ended meanwhile. A refused one may be stored
-- when it is sent again, so a caller that sent several copies must treat 'f' and 'k' as unknown.

-- The fast path has stored the task, and leaves the wake-up.
if wake_request then
  call('HSET', wake_request.meta_key, 'woke', integer(now_us))
  if not wake_request.comes_sooner then
    wake_idle_worker(wake_request.idle_key)
  else
    local _, notify_sooner = make_notifiers(wake_request.idle_key)
    notify_sooner(parse_timer_worker(call('HGET', wake_request.meta_key, 'guard')))
  end
  return '1'
end

local TERMS_PATTERN = '^(%d+) (%d+) (%d+) (%S)(%d*)$'
-- Slot 0 of `zp` holds the second in which its TTL was last set, so that few pushes set it.
local SLOTS_TTL_S, SLOTS_RENEWAL_S = 600, 60
local all_outcomes, unique_owners, key_index, arg_index = {}, {}, 0, 0

-- Writes the push numbers of these tasks to their slots. Returns the previous values, that of task
-- `i` at `i + 1`.
local function exchange_slots(PUSH_SLOTS, tasks)
  local command = {'GET', 'u40', '#0'}
  for i, task in ipairs(tasks) do
    local offset = i * 4
    command[offset], command[offset + 1], command[offset + 2], command[offset + 3] =
      'SET', 'u40', '#' .. task.slot, task.number
  end
  local slots = call('BITFIELD', PUSH_SLOTS, unpack(command))
  local second = floor(now_us / 1000000)
  if slots[1] > second or slots[1] < second - SLOTS_RENEWAL_S then
    call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', '#0', integer(second))
    call('EXPIRE', PUSH_SLOTS, SLOTS_TTL_S)
  end
  return slots
end

-- Returns the other task that has this task's unique key. If there is none, and `has_room`, this
-- task gets the key. The records of `new_ids` are not written yet.
local function claim_unique_key(task, RECORDS, UNIQUE_KEYS, new_ids, has_room)
  if task.kind == 'p' then
    local id = call('HGET', UNIQUE_KEYS, task.unique_key)
    if id and id ~= task.id and (new_ids[id] or call('HEXISTS', RECORDS, id) == 1) then
      return id
    end
    if has_room then call('HSET', UNIQUE_KEYS, task.unique_key, task.id) end
  else
    local id = call('GET', task.window_key)
    if id and id ~= task.id then return id end
    if has_room then call('SET', task.window_key, task.id, 'PX', task.ttl_ms) end
  end
end

-- Stores the tasks of one group. Returns their letters.
local function push_group(WAITING, PUSH_SLOTS, tasks, max_waiting, max_bytes)
  local split_at = string.find(WAITING, '}:z:', 1, true)
  local shard_prefix, queue_name =
    string.sub(WAITING, 1, split_at + 1), string.sub(WAITING, split_at + 3)
  local RECORDS, QUEUE_META = shard_prefix .. 'zt' .. queue_name, shard_prefix .. 'zf' .. queue_name
  local meta = call('HMGET', QUEUE_META, 'seq', 'bytes', 'pushed', 'woke')
  local sequence, queue_bytes, pushed_count, last_wake_us =
    tonumber(meta[1] or '0'), tonumber(meta[2] or '0'),
    tonumber(meta[3] or '0'), tonumber(meta[4] or '0')
  local waiting_count, slots, new_ids =
    call('ZCARD', WAITING), exchange_slots(PUSH_SLOTS, tasks), {}
  tasks.slots = slots
  local record_args, waiting_args, outcomes, new_count, sequence_text = {}, {}, {}, 0, nil
  for i, task in ipairs(tasks) do
    local outcome, slot_number, push_number = '1', slots[i + 1], tonumber(task.number)
    local record_bytes = #task.record + 16
    if slot_number > push_number then
      outcome = call('HEXISTS', RECORDS, task.id) == 1 and '1' or '?'
    elseif slot_number < push_number then
      local has_room =
        waiting_count + new_count < max_waiting and queue_bytes + record_bytes <= max_bytes
      -- Asked of a full queue too: a push of a task that it has already gets 'k', not 'f'.
      local id = task.kind ~= '-'
        and claim_unique_key(task, RECORDS, shard_prefix .. 'zu' .. queue_name, new_ids, has_room)
      if id then
        outcome = 'k'
        unique_owners[#unique_owners + 1] = id
      elseif not has_room then
        outcome = 'f'
      else
        sequence, queue_bytes = next_sequence(sequence), queue_bytes + record_bytes
        new_ids[task.id], new_count, sequence_text = true, new_count + 1, integer(sequence)
        record_args[2 * new_count - 1], record_args[2 * new_count] = task.id,
          string.sub('0000000000000000', #sequence_text + 1) .. sequence_text .. task.record
        waiting_args[2 * new_count - 1], waiting_args[2 * new_count] =
          task.delay_us == '0' and sequence_text or integer(sequence + task.delay_us), task.id
      end
    end
    -- The previous number goes back into the slot in two cases. A refused task may be stored when
    -- it is sent again. A late copy must not replace the number of a newer push.
    if outcome == 'f' or outcome == 'k' or slot_number > push_number then
      call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', '#' .. task.slot, integer(slot_number))
    end
    outcomes[i] = outcome
  end
  if new_count == 0 then return outcomes end
  call('HSET', RECORDS, unpack(record_args))
  call('ZADD', WAITING, unpack(waiting_args))
  local head = call('ZRANGE', WAITING, '0', '0', 'WITHSCORES')
  local head_due_us = tonumber(head[2])
  local is_first, is_head_overdue =
    new_ids[head[1]], head_due_us < now_us - 50000 and last_wake_us < now_us - 50000
  if not is_first and not is_head_overdue then
    call('HSET', QUEUE_META, 'seq', sequence_text, 'bytes', integer(queue_bytes),
      'pushed', integer(pushed_count + new_count))
    return outcomes
  end
  call('HSET', QUEUE_META, 'seq', sequence_text, 'bytes', integer(queue_bytes),
    'pushed', integer(pushed_count + new_count), 'woke', integer(now_us))
  local IDLE_WORKERS = shard_prefix .. 'zw' .. queue_name
  if is_first and head_due_us > now_us then
    local _, notify_sooner = make_notifiers(IDLE_WORKERS)
    notify_sooner(parse_timer_worker(call('HGET', QUEUE_META, 'guard')))
  else
    wake_idle_worker(IDLE_WORKERS)
  end
  return outcomes
end

while ARGV[arg_index + 1] do
  local task_count, max_waiting, max_bytes =
    string.match(ARGV[arg_index + 1], '^(%d+) (%d+) (%d+)$')
  local WAITING, PUSH_SLOTS, tasks = KEYS[key_index + 1], KEYS[key_index + 2], {}
  key_index, arg_index = key_index + 2, arg_index + 1
  for i = 1, tonumber(task_count) do
    local task = {id = ARGV[arg_index + 1]}
    task.number, task.slot, task.delay_us, task.kind, task.ttl_ms =
      string.match(ARGV[arg_index + 2], TERMS_PATTERN)
    arg_index = arg_index + 2
    if task.kind ~= '-' then
      task.unique_key, arg_index = ARGV[arg_index + 1], arg_index + 1
    end
    if task.kind == 'w' then
      task.window_key, key_index = KEYS[key_index + 1], key_index + 1
    end
    task.record, arg_index = ARGV[arg_index + 1], arg_index + 1
    tasks[i] = task
  end
  local succeeded, answer =
    pcall(push_group, WAITING, PUSH_SLOTS, tasks, tonumber(max_waiting), tonumber(max_bytes))
  if not succeeded then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- A condition of the server holds for all groups. The server reports it before the first write
    -- of a script or never, so nothing is stored.
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local start = string.find(text, code, 1, true)
      if start then return redis.error_reply(string.sub(text, start)) end
    end
    -- The slots must not report any task of this group as stored.
    for i, task in ipairs(tasks.slots and tasks or {}) do
      call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', '#' .. task.slot, integer(tasks.slots[i + 1]))
    end
  end
  for i = 1, #tasks do all_outcomes[#all_outcomes + 1] = succeeded and answer[i] or '!' end
end
if #unique_owners == 0 then return table.concat(all_outcomes) end
return {table.concat(all_outcomes), unpack(unique_owners)}
