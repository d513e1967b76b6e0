-- Puts counters right after the fact: each by itself, rate.lua stands before this.
--
-- A refund is for the window that was charged: it lapses with it, and never moves it, and a counter that is 0
-- again keeps its TTL. Of the debt that was charged it gives back no more than is sure to be owed still of that charge, if
-- charges are paid off in the order they were made, and all that was given back was of those before it; of another
-- debt, nothing. What is charged here counts even beyond the limit.
--
-- KEYS the counters
-- ARGV per counter: 'charge' or 'refund', which window and which debt (0 for a charge), and as in charge.lua
-- without penalties; cost = what it is put right by
-- Returns one list: server time us, then per counter as charge.lua, or its error's text
-- At most 100 counters. O(counters). NOT idempotent: sent again only where it cannot have run.
local refund = {}
function refund.f(c, window)
  -- Before Redis 7.0 an end is two readings of a clock, each rounded; and no mistaking a very short window for the
  -- next one.
  local near = min(floor((c.window - 1) / 2), 2)
  if c.fresh or math.abs(ms + c.left - window) > near then return end
  c.spent = c.spent - min(c.cost, max(c.spent, 0))
end
function refund.s(c, window)
  if c.start == window then
    c.spent = max(c.spent - c.cost, 0)
  elseif c.start == window + c.window then
    c.before = max(c.before - c.cost, 0)
  end
end
function refund.g(c, window, debt)
  -- It was paid off or forgotten since; or so much would be owed that it is not known any more.
  if c.debt ~= debt or c.gross >= PARTS then return end
  local owed = floor(max(window - now, 0) / c.tick) * c.drain - (c.gross - c.spent)
  c.spent = max(c.spent - max(min(c.cost, owed), 0), 0)
end
local function settle(c, verb, window, debt)
  look(c)
  local spent, before = c.spent, c.before
  if verb == 'refund' then
    refund[c.kind](c, window, debt)
  else
    c.spent = max(min(spent + c.cost, c.kind == 'g' and PARTS or MOST), spent)
  end
  if c.spent ~= spent or c.before ~= before then write[c.kind](c) end
  return {told[c.kind](c)}
end
local out, a = {now}, 1
for _, key in ipairs(KEYS) do
  -- In a cluster the last one is never there, and no counter (keys.rs).
  if not ARGV[a] then break end
  local c, past = counter(a + 3, key)
  local well, answer = pcall(settle, c, ARGV[a], number(ARGV[a + 1]), ARGV[a + 2])
  if not well then
    local text, all = own(answer)
    if all then return all end
    answer = {text}
  end
  for _, word in ipairs(answer) do out[#out + 1] = word end
  a = past
end
return out
