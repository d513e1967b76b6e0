-- The usual case of the steps of lock_batch.lua, which this stands before: nobody else holds the lock, nobody
-- waits for it. Does what acquire.lua, refresh_grant.lua and release.lua do then, with fewer looks, and without the functions
-- of wait_queue.lua: to make them costs more than such a step. The first step that is not
-- usual, and all steps after it, are left to those.
--
-- What costs the server most, as counted by callgrind: the call itself (11,000 instructions), a list as
-- answer (5,000), the clock (7,000), a number made text (5,000, and 1,500 if it is known to be whole), each command
-- (3,000 to 8,000), each key and argument (1,500), a name made of another (1,000), each function and each variable it
-- shares (500).
--
-- KEYS, ARGV as lock_batch.lua   Answers 'held <fence> <now us>' (nobody stands in line) and 'released'. If all
-- steps are usual, the reply is one text of them, joined by commas.
-- Leaves behind the answers of the steps it has done, and in `taken` whether the step it stopped at is a release whose
-- holder it has removed already.
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000

local function run_fast_path(results, KEYS, ARGV, call)
  local find, sub, format = string.find, string.sub, string.format
  local done, arg_count, key_index, arg_index = 0, #ARGV, 0, 0
  local seconds, micros, now_text, held_answer, lease_text, deadline_text
  while arg_index < arg_count do
    local holders = KEYS[key_index + 1]
    local verb, mode = string.byte(ARGV[arg_index + 1], 1, 2)
    local is_acquire, is_refresh = verb == 97 or verb == 107, verb == 115 -- a, k, s
    -- 'lg:1:<ns>:{<shard>}:h:<name>'
    local cut = find(holders, '}:h:', 1, true)
    local shard_prefix, lock_name = sub(holders, 1, cut + 1), sub(holders, cut + 4)
    local waiters, jobs = shard_prefix .. 'q:' .. lock_name, shard_prefix .. 'g:' .. lock_name
    if not now_text and (is_acquire or is_refresh or mode ~= 120) then
      local time = call('TIME')
      seconds, micros = time[1], time[2]
      -- Microseconds since 1970, as text: sixteen digits until the year 2286.
      now_text = seconds .. (#micros == 6 and micros or sub('00000' .. micros, -6))
      held_answer = 'held ' .. now_text .. ' ' .. now_text
    end
    if is_acquire or is_refresh then
      if is_refresh then
        -- If it is there it is in time, as below.
        if not call('ZSCORE', holders, ARGV[arg_index + 2]) or call('EXISTS', waiters, jobs) ~= 0 then break end
      else
        if call('EXISTS', holders, waiters, jobs) ~= 0 then break end
        if verb == 107 and call('EXISTS', KEYS[key_index + 2]) ~= 0 then break end
      end
      local shard_meta = shard_prefix .. 'f'
      local last_fence, answer, fence = call('HGET', shard_meta, 'fence'), held_answer, now_text
      local now_us = seconds * 1000000 + micros
      local next_unused = last_fence and last_fence + SPARE_FENCES + 1 or now_us + FENCE_LEAD_US
      -- A fence whose spare ones are not in the past is rare.
      if next_unused > now_us then
        fence = format('%.0f', next_unused)
        answer = 'held ' .. fence .. ' ' .. now_text
      end
      call('HSET', shard_meta, 'fence', fence)
      if is_acquire then
        if lease_text ~= ARGV[arg_index + 3] then
          lease_text = ARGV[arg_index + 3]
          -- In two whole numbers that any build of the server writes fast.
          local end_of_lease_ms = (micros - micros % 1000) / 1000 + lease_text
          deadline_text = format('%d%03d', seconds + (end_of_lease_ms - end_of_lease_ms % 1000) / 1000, end_of_lease_ms % 1000)
        end
        call('ZADD', holders, deadline_text, ARGV[arg_index + 2])
        call('PEXPIRE', holders, lease_text)
      end
      done = done + 1
      results[done] = answer
      key_index, arg_index = key_index + (verb == 107 and 2 or 1), arg_index + (is_refresh and 2 or 3)
    elseif verb == 114 then -- r
      if mode == 120 then -- x
        -- Beside one in mode x there is no other in h, not even one that is past its end, and h ends with
        -- it: so if it is there it is in time, and the lock is free when it is out.
        if call('ZREM', holders, ARGV[arg_index + 2]) == 0 then break end
        if call('EXISTS', waiters, jobs) ~= 0 then return key_index, arg_index, true end
      else
        -- One holder, in time, and nobody waits: if it is me, that was all.
        if call('ZCOUNT', holders, '(' .. sub(now_text, 1, -4), '+inf') ~= 1 then break end
        if call('ZCARD', holders) ~= 1 or call('EXISTS', waiters, jobs) ~= 0 then break end
        if call('ZREM', holders, ARGV[arg_index + 2]) == 0 then break end
      end
      done = done + 1
      results[done] = 'released'
      key_index, arg_index = key_index + 1, arg_index + 2
    else
      break
    end
  end
  return key_index, arg_index, false
end

local results = {}
-- An error is told by those who do it the long way.
local succeeded, key_index, arg_index, holder_removed = pcall(run_fast_path, results, KEYS, ARGV, redis.call)
if not succeeded then
  holder_removed = false
elseif arg_index == #ARGV then
  return #results == 1 and results[1] or table.concat(results, ',')
end
