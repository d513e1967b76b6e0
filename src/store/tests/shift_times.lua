-- Moves all stored times of a namespace into the past, for tests: everything expires that much
-- sooner.
--
-- Input:
--   ARGV[1]  prefix of the namespace
--   ARGV[2]  shift, ms; if it is negative, the effect is that of a server clock that was put back
-- Output: none.
-- Complexity: O(keys of the server).
local shift_ms = tonumber(ARGV[2])
local function integer(number) return string.format('%.0f', number) end

-- Shifts the deadline, ms, with which a text begins.
local function shift_prefix(text)
  return (string.gsub(text, '^%d+', function(deadline_ms)
    return integer(tonumber(deadline_ms) - shift_ms)
  end))
end

-- By kind of key: shifts the times in its value.
local shift_value = {}

-- Scores in ms.
for _, kind in ipairs({'h', 'due', 'late', 'exp', 'limiters', 'n', 'e'}) do
  shift_value[kind] = function(key)
    local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      redis.call('ZADD', key, integer(tonumber(rows[i + 1]) - shift_ms), rows[i])
    end
  end
end

-- Scores in us.
for _, kind in ipairs({'done', 'dead', 'z', 'zl', 'zd', 'zw'}) do
  shift_value[kind] = function(key)
    local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      redis.call('ZADD', key, integer(tonumber(rows[i + 1]) - shift_ms * 1000), rows[i])
    end
  end
end

function shift_value.watch(key)
  redis.call('SET', key, shift_prefix(redis.call('GET', key)))
end

function shift_value.workers(key)
  local text = string.gsub(redis.call('GET', key), '%d+:', function(deadline)
    return integer(tonumber(string.sub(deadline, 1, -2)) - shift_ms) .. ':'
  end)
  redis.call('SET', key, text, 'KEEPTTL')
end

function shift_value.zt(key)
  local records = redis.call('HGETALL', key)
  for i = 1, #records, 2 do
    local pushed_us, rest = string.match(records[i + 1], '^(%d+)(.*)$')
    local shifted = string.format('%016.0f', tonumber(pushed_us) - shift_ms * 1000)
    redis.call('HSET', key, records[i], shifted .. rest)
  end
end

function shift_value.zf(key)
  for _, field in ipairs({'seq', 'woke', 'tat', 'swept'}) do
    local time_us = redis.call('HGET', key, field)
    if time_us then
      redis.call('HSET', key, field, integer(math.max(tonumber(time_us) - shift_ms * 1000, 0)))
    end
  end
  local deadline_us, event_us, worker =
    string.match(redis.call('HGET', key, 'guard') or '', '^(%d+) (%d+) (.+)$')
  if deadline_us then
    redis.call(
      'HSET', key, 'guard',
      integer(tonumber(deadline_us) - shift_ms * 1000) .. ' '
        .. integer(tonumber(event_us) - shift_ms * 1000) .. ' ' .. worker
    )
  end
end

function shift_value.q(key)
  local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    redis.call('ZADD', key, rows[i + 1], shift_prefix(rows[i]))
    redis.call('ZREM', key, rows[i])
  end
end

function shift_value.l(key)
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if field == 'park' then
      redis.call('HSET', key, field, shift_prefix(value))
    elseif field == 'back' then
      redis.call('HSET', key, field, (string.gsub(value, '(%d+) (%x+)', function(deadline_ms, id)
        return integer(tonumber(deadline_ms) - shift_ms) .. ' ' .. id
      end)))
    elseif field == 'past' then
      local sequence, deadline_ms = string.match(value, '^(%d+) (%d+)$')
      redis.call(
        'HSET', key, field, sequence .. ' ' .. integer(tonumber(deadline_ms) - shift_ms)
      )
    elseif string.sub(field, 1, 1) == '@' then
      redis.call('HSET', key, field, shift_prefix(value))
    end
  end
end

function shift_value.j(key)
  for _, field in ipairs({'exp', 'til'}) do
    local time_ms = redis.call('HGET', key, field)
    if time_ms then redis.call('HSET', key, field, integer(tonumber(time_ms) - shift_ms)) end
  end
  local began_us = redis.call('HGET', key, 'began')
  -- Times of ended runs are history, and do not pass.
  if began_us and redis.call('HGET', key, 'state') == 'running' then
    redis.call('HSET', key, 'began', integer(tonumber(began_us) - shift_ms * 1000))
  end
  local records, count = string.gsub(
    redis.call('HGET', key, 'record') or '', '(%S+) (%d+)',
    function(record_name, deadline_ms)
      return record_name .. ' ' .. integer(tonumber(deadline_ms) - shift_ms)
    end
  )
  if count > 0 then redis.call('HSET', key, 'record', records) end
end

-- Fences and sequences only grow. They stay as time passes, and are ahead of a clock that was put
-- back.
function shift_value.f(key)
  for _, field in ipairs(shift_ms < 0 and {'seq', 'fence'} or {}) do
    local last = redis.call('HGET', key, field)
    if last then redis.call('HSET', key, field, integer(tonumber(last) - shift_ms * 1000)) end
  end
end

function shift_value.cs(key)
  local start_ms, rest = string.match(redis.call('GET', key), '^(%d+)(.*)$')
  redis.call('SET', key, integer(tonumber(start_ms) - shift_ms) .. rest, 'KEEPTTL')
end

function shift_value.cg(key)
  local since_us, rest = string.match(redis.call('GET', key), '^(%d+)(.*)$')
  redis.call('SET', key, integer(tonumber(since_us) - shift_ms * 1000) .. rest, 'KEEPTTL')
end

for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind = string.match(string.sub(key, #ARGV[1] + 1), '^{%d+}:(%a+)')
    or string.sub(key, #ARGV[1] + 1)
  if shift_value[kind] then shift_value[kind](key) end
  local ttl_ms = redis.call('PTTL', key)
  if ttl_ms >= 0 then
    if ttl_ms <= shift_ms then
      redis.call('DEL', key)
    else
      redis.call('PEXPIRE', key, integer(ttl_ms - shift_ms))
    end
  end
end
