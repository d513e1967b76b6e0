-- Executes the charges that charge_batch_fast.lua has left, and returns the reply. Input and output
-- are described there.
--
-- Expects quota_counter_load_store.lua, and the state of charge_batch_fast.lua:
--   key_index, arg_index             position in KEYS and ARGV
--   rule_index, repeats, keys_left   position within an 'f' or '='
--   results, result_count            the reply up to here
local next_key_index, next_arg_index

-- Reads the penalty of a counter. Returns the time left of its block, ms; 0 = not blocked.
local function remaining_block_ms(counter)
  local stored, max_ttl_ms = call('GET', counter.refusals_key), counter.block_ms
  counter.refusal_count, counter.refusals_ttl_ms = 0, counter.window_ms
  if not stored then return 0 end
  local is_blocked, operator_block_ms = string.match(stored, '^(blocked) ?(%d*)$')
  if is_blocked then
    max_ttl_ms = to_number(operator_block_ms) or max_ttl_ms
  else
    if not string.find(stored, '^%d+$') then error('ERR value is not a number of refusals') end
    max_ttl_ms = counter.window_ms
  end
  -- Refusals count for at most a window from now, and a block lasts at most `block_ms` from now, or
  -- the time in its value (block_counters.lua). A TTL is missing or longer if it was lost, the
  -- policy has changed, or the clock was put back.
  local remaining_ms = call('PTTL', counter.refusals_key)
  if remaining_ms == -1 or remaining_ms > max_ttl_ms then
    call('PEXPIRE', counter.refusals_key, integer(max_ttl_ms))
    remaining_ms = max_ttl_ms
  end
  if is_blocked then return max(remaining_ms, 0) end
  if remaining_ms > 0 then
    counter.refusal_count, counter.refusals_ttl_ms = to_number(stored), remaining_ms
  end
  return 0
end

-- Adds refusals to the penalty. Returns the duration of the block that they cause, ms; 0 = none.
local function count_refusals(counter, refused_count)
  local refusal_count = counter.refusal_count + refused_count
  if refusal_count >= counter.max_refusals then
    call('SET', counter.refusals_key, 'blocked', 'PX', integer(counter.block_ms))
    return counter.block_ms
  end
  call(
    'SET', counter.refusals_key, integer(refusal_count), 'PX', integer(counter.refusals_ttl_ms)
  )
  return 0
end

-- Reads the arguments of the next charge. Returns its counters and repetitions.
local function read_charge()
  if keys_left > 0 then
    next_key_index, next_arg_index = key_index + 1, arg_index
    return {(parse_counter(rule_index, KEYS[key_index + 1]))}, repeats
  end
  local counters, key_at, arg_at = {}, key_index, arg_index + 3
  for i = 1, to_number(ARGV[arg_index + 1]) do
    local counter
    counter, arg_at = parse_counter(arg_at, KEYS[key_at + 1])
    key_at = key_at + 1
    if ARGV[arg_at] ~= '0' then
      key_at = key_at + 1
      counter.refusals_key, counter.max_refusals, counter.block_ms =
        KEYS[key_at], to_number(ARGV[arg_at]), to_number(ARGV[arg_at + 1])
    end
    arg_at, counters[i] = arg_at + 2, counter
  end
  next_key_index, next_arg_index = key_at, arg_at
  return counters, to_number(ARGV[arg_index + 2])
end

local function run_charge()
  local counters, repeats = read_charge()
  local admitted = repeats
  -- All counters are read before any is charged: an error here leaves all of them uncharged.
  for _, counter in ipairs(counters) do
    load_counter(counter)
    counter.headroom = counter.cost > 0
      and floor((counter.limit - counter.used_before) / counter.cost)
      or repeats
    counter.blocked_ms = counter.refusals_key and remaining_block_ms(counter) or 0
    admitted = min(admitted, counter.blocked_ms > 0 and 0 or counter.headroom)
  end
  admitted = max(admitted, 0)
  local refused_count = repeats - admitted
  for _, counter in ipairs(counters) do
    if admitted > 0 and counter.cost > 0 then
      counter.spent = counter.spent + admitted * counter.cost
      store_state[counter.kind](counter)
    end
    -- Some refusals do not count for a penalty: those by another counter, those during a block, and
    -- those of a cost that is never admitted.
    if
      counter.refusals_key and refused_count > 0 and counter.blocked_ms == 0
      and counter.headroom <= admitted and counter.cost <= counter.limit
    then
      counter.blocked_ms = count_refusals(counter, refused_count)
    end
  end
  -- Nothing below can fail, so an error's text never follows a part of this charge's results.
  result_count = result_count + 1
  results[result_count] = admitted
  for _, counter in ipairs(counters) do
    local first, second, third = reply_state[counter.kind](counter)
    results[result_count + 1], results[result_count + 2], results[result_count + 3] =
      first, second, third
    result_count = result_count + (third and 3 or 2)
    if counter.refusals_key then
      result_count = result_count + 1
      results[result_count] = counter.blocked_ms
    end
  end
end

while keys_left > 0 or ARGV[arg_index] do
  if keys_left == 0 and ARGV[arg_index] == 'f' then
    rule_index, repeats, keys_left, arg_index =
      arg_index, to_number(ARGV[arg_index + 4]), 1, arg_index + 5
  elseif keys_left == 0 and ARGV[arg_index] == '=' then
    repeats, keys_left, arg_index = 1, to_number(ARGV[arg_index + 1]), arg_index + 2
  end
  local succeeded, failure = pcall(run_charge)
  if not succeeded then
    local text, server_error = charge_error(failure)
    if server_error then return server_error end
    result_count = result_count + 1
    results[result_count] = text
  end
  key_index, arg_index, keys_left = next_key_index, next_arg_index, max(keys_left - 1, 0)
end
return cmsgpack.pack(results)
