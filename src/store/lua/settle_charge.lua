-- Puts counters right after the fact: each by itself, rate_counters.lua stands before this.
--
-- A refund is for the window that was charged: it lapses with it, and never moves it, and a counter that is 0
-- again keeps its TTL. Of the debt that was charged it gives back no more than is sure to be owed still of that charge, if
-- charges are paid off in the order they were made, and all that was given back was of those before it; of another
-- debt, nothing. What is charged here counts even beyond the limit.
--
-- KEYS the counters
-- ARGV per counter: 'charge' or 'refund', which window and which debt (0 for a charge), and as in charge_batch_fast.lua
-- without penalties; cost = what it is put right by
-- Returns one list: server time us, then per counter as charge_batch_fast.lua, or its error's text
-- At most 100 counters. O(counters). NOT idempotent: sent again only where it cannot have run.
local apply_refund = {}
function apply_refund.f(counter, charged_window)
  -- Before Redis 7.0 an end is two readings of a clock, each rounded; and no mistaking a very short window for the
  -- next one.
  local tolerance_ms = min(floor((counter.window_ms - 1) / 2), 2)
  if counter.is_new_window or math.abs(now_ms + counter.remaining_ms - charged_window) > tolerance_ms then return end
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
  -- It was paid off or forgotten since; or so much would be owed that it is not known any more.
  if counter.debt ~= charged_debt or counter.gross >= MAX_PARTS then return end
  local owed_parts = floor(max(charged_window - now_us, 0) / counter.tick_us) * counter.tick_parts - (counter.gross - counter.spent)
  counter.spent = max(counter.spent - max(min(counter.cost, owed_parts), 0), 0)
end
local function settle_counter(counter, verb, charged_window, charged_debt)
  load_counter(counter)
  local spent_before, previous_before = counter.spent, counter.previous_spent
  if verb == 'refund' then
    apply_refund[counter.kind](counter, charged_window, charged_debt)
  else
    counter.spent = max(min(spent_before + counter.cost, counter.kind == 'g' and MAX_PARTS or MAX_UNITS), spent_before)
  end
  if counter.spent ~= spent_before or counter.previous_spent ~= previous_before then store_state[counter.kind](counter) end
  return {reply_state[counter.kind](counter)}
end
local results, arg_index = {now_us}, 1
for _, key in ipairs(KEYS) do
  -- In a cluster the last one is never there, and no counter (keys.rs).
  if not ARGV[arg_index] then break end
  local counter, next_arg_index = parse_counter(arg_index + 3, key)
  local succeeded, answer = pcall(settle_counter, counter, ARGV[arg_index], to_number(ARGV[arg_index + 1]), ARGV[arg_index + 2])
  if not succeeded then
    local text, server_error = step_error(answer)
    if server_error then return server_error end
    answer = {text}
  end
  for _, value in ipairs(answer) do results[#results + 1] = value end
  arg_index = next_arg_index
end
return results
