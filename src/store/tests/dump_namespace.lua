-- Returns the content of a namespace, for tests.
--
-- Input:
--   ARGV[1]  prefix of the namespace
-- Output: one line per key, sorted by name: '<name> <expiry> <content>'
--   name     without the prefix
--   expiry   'ends <ms since 1970>', or 'stays' without a TTL
--   content  of a string, its value; otherwise '<member or field>=<score or value>' pairs
-- Complexity: O(keys of the server). Nothing is changed.
--
-- Expired holders, and expired queue entries with their tokens, are left out, since every operation
-- ignores them. A key with nothing else is left out too.

local function server_time_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns the expiry of a key, ms; below 0 without a TTL. PTTL counts from the time at which the
-- server executes it, which this script does not know: KEYS alone takes some 10 ms among 100,000
-- keys.
local function expiry_ms(key)
  local expiry = redis.pcall('PEXPIRETIME', key)
  if type(expiry) == 'number' then return expiry end
  -- Before Redis 7.0. The result is exact if all three calls are in the same millisecond.
  local before_ms, ttl_ms, after_ms
  repeat
    before_ms, ttl_ms, after_ms = server_time_ms(), redis.call('PTTL', key), server_time_ms()
  until before_ms == after_ms
  return ttl_ms < 0 and ttl_ms or after_ms + ttl_ms
end

local keys, lines = redis.call('KEYS', ARGV[1] .. '*'), {}
local now_ms = server_time_ms()

local function is_expired_entry(queue_entry)
  return tonumber(string.match(queue_entry, '^%d+')) <= now_ms
end

-- By kind of key: returns true for a member or field that is left out.
local is_skipped_by_kind = {
  h = function(_, deadline_ms) return tonumber(deadline_ms) <= now_ms end,
  q = function(queue_entry) return is_expired_entry(queue_entry) end,
  l = function(field, value) return string.sub(field, 1, 1) == '@' and is_expired_entry(value) end,
}
table.sort(keys)
for _, key in ipairs(keys) do
  local name, key_type = string.sub(key, #ARGV[1] + 1), redis.call('TYPE', key)['ok']
  local expiry, items = expiry_ms(key), {}
  if key_type == 'string' then
    items[1] = redis.call('GET', key)
  else
    local pairs_read = key_type == 'hash'
      and redis.call('HGETALL', key)
      or redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    local kind = string.match(name, '^{%d+}:(%a+)')
    local is_skipped = is_skipped_by_kind[kind] or function() return false end
    for i = 1, #pairs_read, 2 do
      if not is_skipped(pairs_read[i], pairs_read[i + 1]) then
        items[#items + 1] = pairs_read[i] .. '=' .. pairs_read[i + 1]
      end
    end
    -- Queue entries stay in the order of their sequences; their text begins with a deadline.
    if kind ~= 'q' then table.sort(items) end
  end
  local expiry_text = expiry < 0 and 'stays' or 'ends ' .. string.format('%.0f', expiry)
  if #items > 0 then
    lines[#lines + 1] = name .. ' ' .. expiry_text .. ' ' .. table.concat(items, ' ')
  end
end
return lines
