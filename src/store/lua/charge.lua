-- Charges that went out together: each is one step of its own, in the order they came, all its counters or
-- none. Here are those at the front that need the least, one fixed window and nothing else; what is left
-- is done by rate.lua and charges.lua, which stand behind this. now.lua and window.lua stand before it.
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
local redis, call, KEYS, ARGV, number = redis, redis.call, KEYS, ARGV, tonumber
local out, n, k, a = {now}, 1, 0, 1
-- Where the terms of an 'f' stand, how often each key is charged by them, and how many keys are to come.
local terms, times, more = 0, 0, 0
local limit, window, price, cost, ttl, till
-- How many of the last ones began a window, and are not told yet.
local firsts = 0
-- The key before had no window: this one is likely to have none either, and is made without being looked for.
local guess = false
while true do
  if more == 0 then
    local verb = ARGV[a]
    if verb == 'f' then
      terms, times, more = a, number(ARGV[a + 4]), 1
      ttl = ARGV[a + 2]
      limit, window, price = number(ARGV[a + 1]), number(ttl), ARGV[a + 3]
      till = string.format('%.0f', ms + window)
      a, cost = a + 5, number(price)
    elseif verb == '=' then
      times, more, a = 1, number(ARGV[a + 1]), a + 2
    else
      break
    end
  end
  local key, spent, left, admitted, first = KEYS[k + 1], 0, 0, times, false
  if guess and times == 1 and cost > 0 and cost <= limit and call('SET', key, price, 'PXAT', till, 'NX') then
    first = true
  else
    local kept = redis.pcall('GET', key)
    if kept then
      -- Neither an error nor anything else but a whole number is usual: see below.
      spent = number(kept)
      if not spent or spent % 1 ~= 0 then break end
      left = call(UNTIL, key)
      local never = left == -1
      left = left - since
      if never or left > window then
        call('PEXPIRE', key, ttl)
        left = window
      end
    end
    local fresh = left <= 0
    guess = fresh
    if fresh then spent, left = 0, window end
    if cost > 0 then
      local room = limit - spent
      if room < cost * admitted then admitted = room < cost and 0 or math.floor(room / cost) end
      if admitted > 0 then
        local units = admitted > 1 and string.format('%.0f', admitted * cost) or price
        if fresh then
          call('SET', key, units, 'PXAT', till)
          first = admitted == times
        elseif not number(redis.pcall('INCRBY', key, units)) then
          break
        end
        spent = spent + admitted * cost
      end
    end
  end
  if first then
    firsts = firsts + 1
  else
    if firsts > 0 then
      out[n + 1], out[n + 2] = true, firsts
      n, firsts = n + 2, 0
    end
    out[n + 1], out[n + 2], out[n + 3] = admitted, spent, left
    n = n + 3
  end
  k, more = k + 1, more - 1
end
if firsts > 0 then
  out[n + 1], out[n + 2] = true, firsts
  n = n + 2
end
if more == 0 and not ARGV[a] then return cmsgpack.pack(out) end
