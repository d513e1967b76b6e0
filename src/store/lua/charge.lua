-- Charges fixed windows, all or none: INCR with EXPIRE, as one step.
--
-- A window starts with its first charge and ends by the key's own TTL. A refused call charges
-- nothing and writes nothing. A key that has lost its TTL (a hand, an old client) gets a full
-- window again: such keys would otherwise refuse for ever.
--
-- KEYS one counter a policy   ARGV per policy (3): limit, window ms, cost
-- Returns {1 charged | 0 refused, then per policy: spent after the call, ms left of the window}
-- O(policies), at most 100. NOT idempotent: it is sent again only where it cannot have run.
local spent, left, charged = {}, {}, 1
for i, key in ipairs(KEYS) do
  local limit, window, cost = tonumber(ARGV[i * 3 - 2]), tonumber(ARGV[i * 3 - 1]), tonumber(ARGV[i * 3])
  spent[i] = tonumber(redis.call('GET', key) or '0')
  left[i] = redis.call('PTTL', key)
  if left[i] == -1 then
    redis.call('PEXPIRE', key, window)
    left[i] = window
  end
  if spent[i] + cost > limit then charged = 0 end
end
local out = {charged}
for i, key in ipairs(KEYS) do
  local window, cost = tonumber(ARGV[i * 3 - 1]), tonumber(ARGV[i * 3])
  if charged == 1 and cost > 0 then
    if left[i] < 0 then
      redis.call('SET', key, cost, 'PX', window)
      spent[i] = cost
    else
      spent[i] = redis.call('INCRBY', key, cost)
    end
  end
  -- A window that nobody has started yet would last its full length; PTTL may round down to 0.
  if left[i] < 0 then left[i] = window end
  out[i * 2] = spent[i]
  out[i * 2 + 1] = math.max(left[i], 1)
end
return out
