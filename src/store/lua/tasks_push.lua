-- Stores tasks; those of one queue that come one after the other are a group.
--
-- KEYS a group: z of the queue, zp of this process and the shard; then of each task with a window its zu:<unique>.
-- The queue's other names are made of the first: each that is declared costs as much as to make it.
-- ARGV a group: number of tasks, most that may wait, most bytes, in one text; then a task: id; its terms, in one text:
-- number, its slot, delay us, '-' | 'p' unique while pending | 'w' unique in a window, ms; unless it is '-', its unique
-- key; the record but for its time
-- Returns a letter for each task: '1' stored, 'f' full, 'k' its unique key is another's, '?' nobody knows
-- whether it ran before, '!' the store's data are not ours; then the ids for 'k', in order. A text, if there are none.
-- Or what the server will do for nobody (READONLY, OOM, ..), as the call's error: nothing of it was stored.
-- O(tasks * log n), at most 100. Idempotent: zp has the numbers of this process's last pushes, each in its slot, so one
-- that is sent again is not stored again, even if the task has ended meanwhile. One that was refused may be stored when
-- it comes again: whoever sent more than one copy takes 'f' and 'k' for an unknown outcome.
if wake_request then
  call('HSET', wake_request.meta_key, 'woke', integer(now_us))
  if not wake_request.comes_sooner then
    wake_idle_worker(wake_request.idle_key)
  else
    local _, notify_sooner = make_notifiers(wake_request.idle_key)
    notify_sooner(parse_guard(call('HGET', wake_request.meta_key, 'guard')))
  end
  return '1'
end

local TERMS_PATTERN = '^(%d+) (%d+) (%d+) (%S)(%d*)$'
-- zp begins with the second in which its life was prolonged: not each push has to.
local SLOTS_TTL_S, SLOTS_RENEWAL_S = 600, 60
local all_outcomes, unique_owners, key_index, arg_index = {}, {}, 0, 0

-- The numbers that stood in the slots of these tasks' numbers: which of them have been stored before.
local function exchange_slots(PUSH_SLOTS, tasks)
  local command = {'GET', 'u40', '#0'}
  for i, task in ipairs(tasks) do
    local offset = i * 4
    command[offset], command[offset + 1], command[offset + 2], command[offset + 3] = 'SET', 'u40', '#' .. task.slot, task.number
  end
  local slots = call('BITFIELD', PUSH_SLOTS, unpack(command))
  local second = floor(now_us / 1000000)
  if slots[1] > second or slots[1] < second - SLOTS_RENEWAL_S then
    call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', '#0', integer(second))
    call('EXPIRE', PUSH_SLOTS, SLOTS_TTL_S)
  end
  return slots
end

-- The task that has what is this one's alone, if it is another; if none has, this one has it, where there is room.
local function unique_owner(task, RECORDS, UNIQUE_KEYS, new_ids, has_room)
  if task.kind == 'p' then
    local id = call('HGET', UNIQUE_KEYS, task.unique_key)
    if id and id ~= task.id and (new_ids[id] or call('HEXISTS', RECORDS, id) == 1) then return id end
    if has_room then call('HSET', UNIQUE_KEYS, task.unique_key, task.id) end
  else
    local id = call('GET', task.window_key)
    if id and id ~= task.id then return id end
    if has_room then call('SET', task.window_key, task.id, 'PX', task.ttl_ms) end
  end
end

local function push_group(WAITING, PUSH_SLOTS, tasks, max_waiting, max_bytes)
  local split_at = string.find(WAITING, '}:z:', 1, true)
  local shard_prefix, queue_name = string.sub(WAITING, 1, split_at + 1), string.sub(WAITING, split_at + 3)
  local RECORDS, QUEUE_META = shard_prefix .. 'zt' .. queue_name, shard_prefix .. 'zf' .. queue_name
  local meta = call('HMGET', QUEUE_META, 'seq', 'bytes', 'pushed', 'woke')
  local sequence, queue_bytes, pushed_count, last_wake_us = tonumber(meta[1] or '0'), tonumber(meta[2] or '0'), tonumber(meta[3] or '0'), tonumber(meta[4] or '0')
  local waiting_count, slots, new_ids = call('ZCARD', WAITING), exchange_slots(PUSH_SLOTS, tasks), {}
  tasks.slots = slots
  local record_args, waiting_args, outcomes, new_count, sequence_text = {}, {}, {}, 0, nil
  for i, task in ipairs(tasks) do
    local outcome, slot_number, push_number = '1', slots[i + 1], tonumber(task.number)
    local record_bytes = #task.record + 16
    if slot_number > push_number then
      outcome = call('HEXISTS', RECORDS, task.id) == 1 and '1' or '?'
    elseif slot_number < push_number then
      -- A full queue has those that it has: whoever pushes one of them is told so.
      local has_room = waiting_count + new_count < max_waiting and queue_bytes + record_bytes <= max_bytes
      local id = task.kind ~= '-' and unique_owner(task, RECORDS, shard_prefix .. 'zu' .. queue_name, new_ids, has_room)
      if id then
        outcome = 'k'
        unique_owners[#unique_owners + 1] = id
      elseif not has_room then
        outcome = 'f'
      else
        sequence, queue_bytes = next_sequence(sequence), queue_bytes + record_bytes
        new_ids[task.id], new_count, sequence_text = true, new_count + 1, integer(sequence)
        record_args[2 * new_count - 1], record_args[2 * new_count] = task.id, string.sub('0000000000000000', #sequence_text + 1) .. sequence_text .. task.record
        waiting_args[2 * new_count - 1], waiting_args[2 * new_count] = task.delay_us == '0' and sequence_text or integer(sequence + task.delay_us), task.id
      end
    end
    -- What was not stored may be, when it comes again; what was stored before it, or after it where this is a copy that comes
    -- late, is known still.
    if outcome == 'f' or outcome == 'k' or slot_number > push_number then call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', '#' .. task.slot, integer(slot_number)) end
    outcomes[i] = outcome
  end
  if new_count == 0 then return outcomes end
  call('HSET', RECORDS, unpack(record_args))
  call('ZADD', WAITING, unpack(waiting_args))
  local head = call('ZRANGE', WAITING, '0', '0', 'WITHSCORES')
  local head_due_us = tonumber(head[2])
  local is_first, is_head_overdue = new_ids[head[1]], head_due_us < now_us - 50000 and last_wake_us < now_us - 50000
  if not is_first and not is_head_overdue then
    call('HSET', QUEUE_META, 'seq', sequence_text, 'bytes', integer(queue_bytes), 'pushed', integer(pushed_count + new_count))
    return outcomes
  end
  call('HSET', QUEUE_META, 'seq', sequence_text, 'bytes', integer(queue_bytes), 'pushed', integer(pushed_count + new_count), 'woke', integer(now_us))
  local IDLE_WORKERS = shard_prefix .. 'zw' .. queue_name
  if is_first and head_due_us > now_us then
    local _, notify_sooner = make_notifiers(IDLE_WORKERS)
    notify_sooner(parse_guard(call('HGET', QUEUE_META, 'guard')))
  else
    wake_idle_worker(IDLE_WORKERS)
  end
  return outcomes
end

while ARGV[arg_index + 1] do
  local task_count, max_waiting, max_bytes = string.match(ARGV[arg_index + 1], '^(%d+) (%d+) (%d+)$')
  local WAITING, PUSH_SLOTS, tasks = KEYS[key_index + 1], KEYS[key_index + 2], {}
  key_index, arg_index = key_index + 2, arg_index + 1
  for i = 1, tonumber(task_count) do
    local task = {id = ARGV[arg_index + 1]}
    task.number, task.slot, task.delay_us, task.kind, task.ttl_ms = string.match(ARGV[arg_index + 2], TERMS_PATTERN)
    arg_index = arg_index + 2
    if task.kind ~= '-' then task.unique_key, arg_index = ARGV[arg_index + 1], arg_index + 1 end
    if task.kind == 'w' then task.window_key, key_index = KEYS[key_index + 1], key_index + 1 end
    task.record, arg_index = ARGV[arg_index + 1], arg_index + 1
    tasks[i] = task
  end
  local succeeded, answer = pcall(push_group, WAITING, PUSH_SLOTS, tasks, tonumber(max_waiting), tonumber(max_bytes))
  if not succeeded then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- What is wrong with the server is wrong for all of them. It says so before the first write of a script, or not at
    -- all: nothing is stored.
    for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
      local start = string.find(text, code, 1, true)
      if start then return redis.error_reply(string.sub(text, start)) end
    end
    -- None of them is to be known as stored.
    for i, task in ipairs(tasks.slots and tasks or {}) do
      call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', '#' .. task.slot, integer(tasks.slots[i + 1]))
    end
  end
  for i = 1, #tasks do all_outcomes[#all_outcomes + 1] = succeeded and answer[i] or '!' end
end
if #unique_owners == 0 then return table.concat(all_outcomes) end
return {table.concat(all_outcomes), unpack(unique_owners)}
