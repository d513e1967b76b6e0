-- Charges that went out together: each is one step of its own, in the order they came, all its counters or
-- none. Here are those at the front that need the least, one fixed window and nothing else; what is left
-- is done by rate_counters.lua and charge_batch.lua, which stand behind this. server_time.lua and window_expiry.lua stand before it.
--
-- Fixed window: the counter is a plain number that ends with the window. A window starts with its first charge
-- and is over when no millisecond of it is left. What is refused writes nothing. A key without a TTL (a
-- hand, an old client) gets a whole window again, since it would refuse for ever; one that ends later than
-- a whole window from now is cut to that: the quota has changed, or the clock was put back.
--
-- KEYS per charge: per counter its own, and with a penalty that of its refusals
-- ARGV per charge: 'f', limit, window ms, cost, times        one fixed window, no penalty
--              or: '=', n          n charges, each once and as the last 'f', each of a key of its own
--              or: 'm', counters, times, then per counter
--                    'f' or 's', limit, window ms, cost,                          refusals, block ms
--                    'g', most parts, window ms, parts, parts of a unit, parts a tick, tick us,  refusals, block ms
--                  without a penalty both are 0
-- Returns one list, packed (cmsgpack): server time us, then per charge: how many of `times` were let in (0 times: a look), then per
-- counter: f: spent, ms left   s: spent before, spent, ms left   g: parts owed, and without refunds, which debt (0: none); with a penalty also: ms blocked.
-- Or: true, n          n charges in a row were of one counter each, were all let in, and were the first of its window
-- (packing a number costs as much as a small command).
-- A charge that fails has its error's text in place of all that, and harms no other.
-- At most 100 counters. O(counters). NOT idempotent: sent again only where it cannot have run.
local redis, call, KEYS, ARGV, to_number = redis, redis.call, KEYS, ARGV, tonumber
local results, result_count, key_index, arg_index = {now_us}, 1, 0, 1
-- Where the terms of an 'f' stand, how often each key is charged by them, and how many keys are to come.
local terms_index, repeats, keys_left = 0, 0, 0
local limit, window_ms, cost_text, cost, window_text, expiry_text
-- How many of the last ones began a window, and are not told yet.
local new_windows = 0
-- The key before had no window: this one is likely to have none either, and is made without being looked for.
local expects_new_window = false
while true do
  if keys_left == 0 then
    local verb = ARGV[arg_index]
    if verb == 'f' then
      terms_index, repeats, keys_left = arg_index, to_number(ARGV[arg_index + 4]), 1
      window_text = ARGV[arg_index + 2]
      limit, window_ms, cost_text = to_number(ARGV[arg_index + 1]), to_number(window_text), ARGV[arg_index + 3]
      expiry_text = string.format('%.0f', now_ms + window_ms)
      arg_index, cost = arg_index + 5, to_number(cost_text)
    elseif verb == '=' then
      repeats, keys_left, arg_index = 1, to_number(ARGV[arg_index + 1]), arg_index + 2
    else
      break
    end
  end
  local key, spent, remaining_ms, admitted, is_new_window = KEYS[key_index + 1], 0, 0, repeats, false
  if expects_new_window and repeats == 1 and cost > 0 and cost <= limit and call('SET', key, cost_text, 'PXAT', expiry_text, 'NX') then
    is_new_window = true
  else
    local stored = redis.pcall('GET', key)
    if stored then
      -- Neither an error nor anything else but a whole number is usual: see below.
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
      if headroom < cost * admitted then admitted = headroom < cost and 0 or math.floor(headroom / cost) end
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
    results[result_count + 1], results[result_count + 2], results[result_count + 3] = admitted, spent, remaining_ms
    result_count = result_count + 3
  end
  key_index, keys_left = key_index + 1, keys_left - 1
end
if new_windows > 0 then
  results[result_count + 1], results[result_count + 2] = true, new_windows
  result_count = result_count + 2
end
if keys_left == 0 and not ARGV[arg_index] then return cmsgpack.pack(results) end
