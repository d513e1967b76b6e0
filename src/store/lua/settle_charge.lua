-- Adjusts quota counters after their requests: refunds units, or charges further ones.
--
-- Expects quota_counter_load_store.lua.
--
-- Input, per counter (at most 100):
--   KEYS[1]    counter (STRING)
--   ARGV[1]    'refund' or 'charge'
--   ARGV[2]    of a refund, the charged window: 'f' its end, ms; 's' its start, ms; 'g' the time at
--              which the debt after the charge is paid off if nothing is refunded, us; otherwise 0
--   ARGV[3]    of a refund of 'g', the id of the charged debt; otherwise 0
--   ARGV[4..]  the counter, as under 'm' of charge_batch_fast.lua without the penalty; its cost is
--              the number of units (or parts) to refund or charge
-- Output: one list: server time in us, then per counter its numbers as in charge_batch_fast.lua, or
-- the text of an error: this counter failed, and the others did not.
-- Complexity: O(counters).
-- Not idempotent: the caller repeats only a call that cannot have run.
--
-- - A charge may exceed the limit.
-- - A refund is valid for the charged window only, and never moves its end. A counter that is 0
--   again keeps its TTL.
-- - A GCRA refund is valid for the charged debt only. It returns at most the part of the charge
--   that is certainly still owed, if charges are paid off in their order and all earlier refunds
--   were of charges before this one.
local apply_refund = {}

function apply_refund.f(counter, charged_window)
  -- Before Redis 7.0 the end is computed from two readings of the clock, and the server may stall
  -- between them. The tolerance is less than half a window: a refund of a very short window must
  -- not hit the next one.
  local max_tolerance_ms = EXPIRY_COMMAND == 'PTTL' and 50 or 2
  local tolerance_ms = min(floor((counter.window_ms - 1) / 2), max_tolerance_ms)
  if
    counter.is_new_window
    or math.abs(now_ms + counter.remaining_ms - charged_window) > tolerance_ms
  then
    return
  end
  counter.spent = counter.spent - min(counter.cost, max(counter.spent, 0))
end

function apply_refund.s(counter, charged_window)
  if counter.start_ms == charged_window then
    counter.spent = max(counter.spent - counter.cost, 0)
  elseif counter.start_ms == charged_window + counter.window_ms then
    counter.previous_spent = max(counter.previous_spent - counter.cost, 0)
  end
end

function apply_refund.g(counter, charged_window, charged_debt)
  -- The charged debt was paid off or lost, or the debt is capped, so the amount owed is not known.
  if counter.debt ~= charged_debt or counter.gross >= MAX_PARTS then return end
  local owed_parts =
    floor(max(charged_window - now_us, 0) / counter.tick_us) * counter.tick_parts
    - (counter.gross - counter.spent)
  counter.spent = max(counter.spent - max(min(counter.cost, owed_parts), 0), 0)
end

local function settle_counter(counter, verb, charged_window, charged_debt)
  load_counter(counter)
  local spent_before, previous_before = counter.spent, counter.previous_spent
  if verb == 'refund' then
    apply_refund[counter.kind](counter, charged_window, charged_debt)
  else
    counter.spent = max(
      min(spent_before + counter.cost, counter.kind == 'g' and MAX_PARTS or MAX_UNITS),
      spent_before
    )
  end
  if counter.spent ~= spent_before or counter.previous_spent ~= previous_before then
    store_state[counter.kind](counter)
  end
  return {reply_state[counter.kind](counter)}
end

local results, arg_index = {now_us}, 1
for _, key in ipairs(KEYS) do
  -- In a cluster the last key is the slot guard key, which is no counter and has no arguments.
  if not ARGV[arg_index] then break end
  local counter, next_arg_index = parse_counter(arg_index + 3, key)
  local succeeded, answer = pcall(
    settle_counter, counter, ARGV[arg_index], to_number(ARGV[arg_index + 1]), ARGV[arg_index + 2]
  )
  if not succeeded then
    local text, server_error = charge_error(answer)
    if server_error then return server_error end
    answer = {text}
  end
  for _, value in ipairs(answer) do results[#results + 1] = value end
  arg_index = next_arg_index
end
return results
