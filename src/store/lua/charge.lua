-- Charges fixed windows, all or none: INCR with EXPIRE, as one step.
--
-- A window starts with its first charge and ends by the key's own TTL. A refused call charges
-- nothing and writes nothing. A key that has lost its TTL (a hand, an old client) gets a full
-- window again: such keys would otherwise refuse for ever.
--
-- KEYS one counter a policy   ARGV per policy (3): limit, window ms, cost
-- A counter that is named twice in a call is charged the sum, or nothing.
-- Returns {1 charged | 0 refused, then per policy: spent after the call, ms left of the window}
-- O(policies), at most 100. NOT idempotent: it is sent again only where it cannot have run.
local before, after, left, fresh, charged = {}, {}, {}, {}, 1
for i, key in ipairs(KEYS) do
  local limit, window, cost = tonumber(ARGV[i * 3 - 2]), tonumber(ARGV[i * 3 - 1]), tonumber(ARGV[i * 3])
  if not before[key] then
    before[key] = tonumber(redis.call('GET', key) or '0')
    after[key] = before[key]
    left[key] = redis.call('PTTL', key)
    if left[key] == -1 or left[key] > window then redis.call('PEXPIRE', key, window) end
    -- A window that nobody has started yet would last its full length.
    fresh[key] = left[key] == -2
    if left[key] < 0 then left[key] = window end
  end
  if left[key] > window then left[key] = window end
  after[key] = after[key] + cost
  if after[key] > limit then charged = 0 end
end
local out = {charged}
for i, key in ipairs(KEYS) do
  local cost = ARGV[i * 3]
  if charged == 1 and tonumber(cost) > 0 then
    if fresh[key] then
      redis.call('SET', key, cost, 'PX', left[key])
      fresh[key] = false
    else
      redis.call('INCRBY', key, cost)
    end
  end
  out[i * 2] = charged == 1 and after[key] or before[key]
  -- PTTL may round down to 0.
  out[i * 2 + 1] = math.max(left[key], 1)
end
return out
