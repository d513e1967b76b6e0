-- Charges quota counters for a batch of requests.
--
-- The charges run in the order of the batch. Each charges all of its counters or none. This file is
-- the fast path: it executes charges of one fixed window without a penalty, and stops at the first
-- other charge or at a counter that is no number. quota_counter_load_store.lua and
-- charge_batch.lua, which follow it, execute the rest.
--
-- Expects `now_us` of server_time.lua, and choose_window_ttl_command.lua.
--
-- Input (at most 100 counters):
--   KEYS  per charge and counter: the counter (STRING), with a penalty followed by that (STRING);
--         in a cluster, the guard key of the shard comes last (`slot_guard_key` in key_names.rs)
--   ARGV  per charge one of:
--     'f', limit, window ms, cost, repetitions
--       one fixed window without a penalty
--     '=', n
--       n charges of one repetition each, with the terms of the last 'f'; each has its own key
--     'm', number of counters, repetitions, and per counter
--       'f' or 's', limit, window ms, cost, max refusals, block ms
--       or 'g', max debt, window ms, cost, parts of a unit, parts a tick, tick us, max refusals,
--       block ms; max debt and cost are in parts
--       max refusals and block are 0 without a penalty
--   0 repetitions are a query: it charges nothing.
-- Output: one list, encoded by cmsgpack: server time in us, then per charge one of:
--   number of admitted repetitions, then per counter
--     'f': spent, ms left
--     's': spent in the previous window, spent, ms left
--     'g': parts owed, parts owed without refunds, id of the debt (0 without a debt)
--     and with a penalty: ms left of a block (0 without a block)
--   true, n: each of n charges has one counter, was admitted in full, and began its window
--   the text of an error: this charge failed, and the others did not
-- Complexity: O(counters).
-- Not idempotent: the caller repeats only a call that cannot have run.
--
-- A fixed window is a number, which expires with the window.
-- - The window begins with its first charge. It has ended when no full millisecond of it is left.
-- - A refusal writes nothing.
-- - A key without a TTL (set by hand or by an old client) gets the TTL of a whole window, since it
--   would refuse forever.
-- - A TTL longer than a window is cut to one: the quota has changed, or the clock was put back.
local redis, call, KEYS, ARGV, to_number = redis, redis.call, KEYS, ARGV, tonumber
local results, result_count, key_index, arg_index = {now_us}, 1, 0, 1
-- Position of the current 'f' in ARGV; repetitions of each charge, and number of charges left,
-- under the current 'f' or '='.
local rule_index, repeats, keys_left = 0, 0, 0
local limit, window_ms, cost_text, cost, window_text, expiry_text
-- Number of the last charges that began a window and are not in `results` yet. Encoding a number
-- costs as much as a small command, so a run of such charges is one pair.
local new_windows = 0
-- The previous key had no window. The next one probably has none either, so SET NX replaces GET.
local expects_new_window = false
while true do
  if keys_left == 0 then
    local verb = ARGV[arg_index]
    if verb == 'f' then
      rule_index, repeats, keys_left = arg_index, to_number(ARGV[arg_index + 4]), 1
      window_text = ARGV[arg_index + 2]
      limit, window_ms, cost_text =
        to_number(ARGV[arg_index + 1]), to_number(window_text), ARGV[arg_index + 3]
      expiry_text = string.format('%.0f', now_ms + window_ms)
      arg_index, cost = arg_index + 5, to_number(cost_text)
    elseif verb == '=' then
      repeats, keys_left, arg_index = 1, to_number(ARGV[arg_index + 1]), arg_index + 2
    else
      break
    end
  end
  local key, spent, remaining_ms, admitted, is_new_window =
    KEYS[key_index + 1], 0, 0, repeats, false
  if
    expects_new_window and repeats == 1 and cost > 0 and cost <= limit
    and call('SET', key, cost_text, 'PXAT', expiry_text, 'NX')
  then
    is_new_window = true
  else
    local stored = redis.pcall('GET', key)
    if stored then
      -- An error, or a value that is no whole number, is left to charge_batch.lua.
      spent = to_number(stored)
      if not spent or spent % 1 ~= 0 then break end
      remaining_ms = call(EXPIRY_COMMAND, key)
      local has_no_ttl = remaining_ms == -1
      remaining_ms = remaining_ms - expiry_base_ms
      if has_no_ttl or remaining_ms > window_ms then
        call('PEXPIRE', key, window_text)
        remaining_ms = window_ms
      end
    end
    local is_expired = remaining_ms <= 0
    expects_new_window = is_expired
    if is_expired then spent, remaining_ms = 0, window_ms end
    if cost > 0 then
      local headroom = limit - spent
      if headroom < cost * admitted then
        admitted = headroom < cost and 0 or math.floor(headroom / cost)
      end
      if admitted > 0 then
        local units_text = admitted > 1 and string.format('%.0f', admitted * cost) or cost_text
        if is_expired then
          call('SET', key, units_text, 'PXAT', expiry_text)
          is_new_window = admitted == repeats
        elseif not to_number(redis.pcall('INCRBY', key, units_text)) then
          break
        end
        spent = spent + admitted * cost
      end
    end
  end
  if is_new_window then
    new_windows = new_windows + 1
  else
    if new_windows > 0 then
      results[result_count + 1], results[result_count + 2] = true, new_windows
      result_count, new_windows = result_count + 2, 0
    end
    results[result_count + 1], results[result_count + 2], results[result_count + 3] =
      admitted, spent, remaining_ms
    result_count = result_count + 3
  end
  key_index, keys_left = key_index + 1, keys_left - 1
end
if new_windows > 0 then
  results[result_count + 1], results[result_count + 2] = true, new_windows
  result_count = result_count + 2
end
if keys_left == 0 and not ARGV[arg_index] then return cmsgpack.pack(results) end
