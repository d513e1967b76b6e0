-- Fast path of lock_batch.lua, which it precedes: steps on a lock that has no other holder and no
-- queue. For these it does the work of acquire.lua, new_fence_and_queue_snapshot.lua and
-- release.lua with fewer commands, and without the functions of wait_queue.lua: creating them costs
-- more than such a step.
-- The first other step, and all steps after it, are left to lock_batch.lua.
--
-- Costs in the server, in instructions counted by callgrind:
--   11,000          the call itself
--    7,000          the clock
--    5,000          a list as reply
--    5,000          a number formatted as text; 1,500 if it is known to be whole
--    3,000 - 8,000  each command
--    1,500          each key and each argument
--    1,000          a name derived from another one
--      500          each function, and each variable that it shares
--
-- Input: as for lock_batch.lua.
-- Output, per step: 'held <fence> <now us>', the lock has no queue; 'released'. If all steps are
-- done here, the reply is one text, with commas between the steps.
-- Provides to lock_batch.lua: `results`, the replies of the steps that are done; `holder_removed`,
-- true if the step after them is a release, and its holder was removed already.
local SPARE_FENCES, FENCE_LEAD_US = 32, 600000000

local function run_fast_path(results, KEYS, ARGV, call)
  local find, sub, format = string.find, string.sub, string.format
  local done, arg_count, key_index, arg_index = 0, #ARGV, 0, 0
  local seconds, micros, now_text, held_answer, lease_text, deadline_text
  while arg_index < arg_count do
    local holders = KEYS[key_index + 1]
    local verb, mode = string.byte(ARGV[arg_index + 1], 1, 2)
    local is_acquire, is_refresh = verb == 97 or verb == 107, verb == 115 -- a, k, s
    -- 'lg:1:<ns>:{<shard>}:h:<lock>'
    local prefix_end = find(holders, '}:h:', 1, true)
    local shard_prefix, lock_name = sub(holders, 1, prefix_end + 1), sub(holders, prefix_end + 4)
    local waiters, jobs = shard_prefix .. 'q:' .. lock_name, shard_prefix .. 'g:' .. lock_name
    if not now_text and (is_acquire or is_refresh or mode ~= 120) then
      local time = call('TIME')
      seconds, micros = time[1], time[2]
      -- Microseconds since 1970, as text: 16 digits until the year 2286.
      now_text = seconds .. (#micros == 6 and micros or sub('00000' .. micros, -6))
      held_answer = 'held ' .. now_text .. ' ' .. now_text
    end
    if is_acquire or is_refresh then
      if is_refresh then
        -- An exclusive holder that is in h is in time: see the release below.
        if not call('ZSCORE', holders, ARGV[arg_index + 2])
          or call('EXISTS', waiters, jobs) ~= 0
        then
          break
        end
      else
        if call('EXISTS', holders, waiters, jobs) ~= 0 then break end
        if verb == 107 and call('EXISTS', KEYS[key_index + 2]) ~= 0 then break end
      end
      local shard_meta = shard_prefix .. 'f'
      local last_fence, reply, fence = call('HGET', shard_meta, 'fence'), held_answer, now_text
      local now_us = seconds * 1000000 + micros
      local next_unused = last_fence and last_fence + SPARE_FENCES + 1 or now_us + FENCE_LEAD_US
      -- Rare: the spare fences of the last grant reach beyond the clock.
      if next_unused > now_us then
        fence = format('%.0f', next_unused)
        reply = 'held ' .. fence .. ' ' .. now_text
      end
      call('HSET', shard_meta, 'fence', fence)
      if is_acquire then
        if lease_text ~= ARGV[arg_index + 3] then
          lease_text = ARGV[arg_index + 3]
          -- Formatted as two whole numbers, which any build of the server does fast.
          local end_of_lease_ms = (micros - micros % 1000) / 1000 + lease_text
          deadline_text = format(
            '%d%03d',
            seconds + (end_of_lease_ms - end_of_lease_ms % 1000) / 1000, end_of_lease_ms % 1000
          )
        end
        call('ZADD', holders, deadline_text, ARGV[arg_index + 2])
        call('PEXPIRE', holders, lease_text)
      end
      done = done + 1
      results[done] = reply
      key_index, arg_index =
        key_index + (verb == 107 and 2 or 1), arg_index + (is_refresh and 2 or 3)
    elseif verb == 114 then -- r
      if mode == 120 then -- x
        -- An exclusive holder is alone in h, without even an expired member, and h expires with it.
        -- If it is there, it is in time, and the lock is free after its removal.
        if call('ZREM', holders, ARGV[arg_index + 2]) == 0 then break end
        if call('EXISTS', waiters, jobs) ~= 0 then return key_index, arg_index, true end
      else
        -- h has one member, which is in time, and there is no queue: if the member is this holder,
        -- its removal is all that a release does.
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
-- After an error, lock_batch.lua runs the failed step again and reports the error.
local succeeded, key_index, arg_index, holder_removed =
  pcall(run_fast_path, results, KEYS, ARGV, redis.call)
if not succeeded then
  holder_removed = false
elseif arg_index == #ARGV then
  return #results == 1 and results[1] or table.concat(results, ',')
end
