-- Fast path of tasks_push.lua: one task without a unique key.
--
-- It is placed in front of tasks_push.lua, and has the same KEYS, ARGV and output.
-- It creates no functions and few numbers. As counted by callgrind, the server spends 2,000
-- instructions on each number that is read or written, about 1,000 on each table and function, and
-- 2,500 on a command that does nothing.
-- If a worker has to be woken for the task, tasks_push.lua does that: `wake_request` is then set.
local push_number, slot, delay_us, wake_request
if not ARGV[5] then
  push_number, slot, delay_us = string.match(ARGV[3], '^(%d+) (%d+) (%d+) %-$')
end
if push_number then
  local call, WAITING, PUSH_SLOTS, id, record = redis.call, KEYS[1], KEYS[2], ARGV[2], ARGV[4]
  local max_waiting, max_bytes = string.match(ARGV[1], '^1 (%d+) (%d+)$')
  local split_at = string.find(WAITING, '}:z:', 1, true)
  local shard_prefix, queue_name =
    string.sub(WAITING, 1, split_at + 1), string.sub(WAITING, split_at + 3)
  local RECORDS, QUEUE_META = shard_prefix .. 'zt' .. queue_name, shard_prefix .. 'zf' .. queue_name
  local time = call('TIME')
  local second, micros = tonumber(time[1]), time[2]
  local sequence = time[1] .. (#micros == 6 and micros or string.sub('00000' .. micros, -6))
  -- These commands fail on a key of another type; nothing has been written yet.
  local meta, waiting_count =
    call('HMGET', QUEUE_META, 'seq', 'bytes', 'woke'), call('ZCARD', WAITING)
  slot = '#' .. slot
  local slots =
    call('BITFIELD', PUSH_SLOTS, 'GET', 'u40', '#0', 'SET', 'u40', slot, push_number)
  if slots[1] > second or slots[1] < second - 60 then
    call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', '#0', time[1])
    call('EXPIRE', PUSH_SLOTS, '600')
  end
  if slots[2] ~= 0 then
    local stored_number, own_number = slots[2], tonumber(push_number)
    if stored_number == own_number then return '1' end
    if stored_number > own_number then
      -- A late copy must not replace the number of a newer push.
      call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', slot, stored_number)
      return call('HEXISTS', RECORDS, id) == 1 and '1' or '?'
    end
  end
  local queue_bytes = (meta[2] or 0) + #record + 16
  if waiting_count >= tonumber(max_waiting) or queue_bytes > tonumber(max_bytes) then
    call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', slot, slots[2])
    return 'f'
  end
  local last_sequence = meta[1]
  if last_sequence and (#last_sequence ~= 16 or last_sequence >= sequence) then
    local now_us = second * 1000000 + micros
    -- A last position of more than 1 s ahead is from before the clock was set back.
    if last_sequence - now_us <= 1000000 then
      sequence = string.format('%.0f', last_sequence + 1)
    end
  end
  local set_reply = redis.pcall('HSET', RECORDS, id, sequence .. record)
  if set_reply ~= 1 and set_reply ~= 0 then
    -- RECORDS has another type: the slot must not report this push as stored.
    call('BITFIELD', PUSH_SLOTS, 'SET', 'u40', slot, slots[2])
    return '!'
  end
  call('ZADD', WAITING,
    delay_us == '0' and sequence or string.format('%.0f', sequence + delay_us), id)
  call('HSET', QUEUE_META, 'seq', sequence, 'bytes', queue_bytes)
  call('HINCRBY', QUEUE_META, 'pushed', '1')
  local is_first, is_head_overdue = waiting_count == 0, false
  if not is_first then
    local overdue_before = second * 1000000 + micros - 50000
    if (meta[3] or 0) - overdue_before < 0 then
      -- No wake-up was sent in the last 50 ms: one command reads the first task and its delay.
      local head = call('ZRANGE', WAITING, '0', '0', 'WITHSCORES')
      is_first, is_head_overdue = head[1] == id, head[2] - overdue_before < 0
    else
      is_first = call('ZRANK', WAITING, id) == 0
    end
  end
  if not is_first and not is_head_overdue then return '1' end
  wake_request = {
    meta_key = QUEUE_META,
    idle_key = shard_prefix .. 'zw' .. queue_name,
    comes_sooner = is_first and (delay_us ~= '0' or sequence - (second * 1000000 + micros) > 0)
  }
end
