-- Moves a namespace into the past: everything stored with a time ends that much sooner.
-- For tests alone. Names all the keys of a namespace, so it does not scale, and need not.
--
-- ARGV[1] prefix of the namespace   ARGV[2] ms; below 0, it is as if the server's clock were put back
local ms = tonumber(ARGV[2])
local function int(n) return string.format('%.0f', n) end
local function place(member)
  return (string.gsub(member, '^%d+', function(at) return int(tonumber(at) - ms) end))
end
local shift = {}
for _, kind in ipairs({'h', 'due', 'late', 'exp', 'limiters', 'n', 'e'}) do
  shift[kind] = function(key)
    local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do redis.call('ZADD', key, int(tonumber(rows[i + 1]) - ms), rows[i]) end
  end
end
for _, kind in ipairs({'done', 'dead'}) do
  shift[kind] = function(key)
    local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do redis.call('ZADD', key, int(tonumber(rows[i + 1]) - ms * 1000), rows[i]) end
  end
end
function shift.watch(key)
  redis.call('SET', key, place(redis.call('GET', key)))
end
function shift.workers(key)
  local text = string.gsub(redis.call('GET', key), '%d+:', function(at)
    return int(tonumber(string.sub(at, 1, -2)) - ms) .. ':'
  end)
  redis.call('SET', key, text, 'KEEPTTL')
end
-- Queues of tasks count in us.
for _, kind in ipairs({'z', 'zl', 'zd', 'zw'}) do
  shift[kind] = function(key)
    local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #rows, 2 do
      redis.call('ZADD', key, int(tonumber(rows[i + 1]) - ms * 1000), rows[i])
    end
  end
end
function shift.zt(key)
  local records = redis.call('HGETALL', key)
  for i = 1, #records, 2 do
    local at, rest = string.match(records[i + 1], '^(%d+)(.*)$')
    redis.call('HSET', key, records[i], string.format('%016.0f', tonumber(at) - ms * 1000) .. rest)
  end
end
function shift.zf(key)
  for _, name in ipairs({'seq', 'woke', 'tat', 'swept'}) do
    local at = redis.call('HGET', key, name)
    if at then redis.call('HSET', key, name, int(math.max(tonumber(at) - ms * 1000, 0))) end
  end
  local til, event, who = string.match(redis.call('HGET', key, 'guard') or '', '^(%d+) (%d+) (.+)$')
  if til then
    redis.call('HSET', key, 'guard', int(tonumber(til) - ms * 1000) .. ' ' .. int(tonumber(event) - ms * 1000)
      .. ' ' .. who)
  end
end
function shift.q(key)
  local rows = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    redis.call('ZADD', key, rows[i + 1], place(rows[i]))
    redis.call('ZREM', key, rows[i])
  end
end
function shift.l(key)
  local facts = redis.call('HGETALL', key)
  for i = 1, #facts, 2 do
    local name, value = facts[i], facts[i + 1]
    if name == 'park' then
      redis.call('HSET', key, name, place(value))
    elseif name == 'back' then
      redis.call('HSET', key, name, (string.gsub(value, '(%d+) (%x+)', function(til, id)
        return int(tonumber(til) - ms) .. ' ' .. id
      end)))
    elseif name == 'past' then
      local whom, til = string.match(value, '^(%d+) (%d+)$')
      redis.call('HSET', key, name, whom .. ' ' .. int(tonumber(til) - ms))
    elseif string.sub(name, 1, 1) == '@' then
      redis.call('HSET', key, name, place(value))
    end
  end
end
function shift.j(key)
  for _, name in ipairs({'exp', 'til'}) do
    local at = redis.call('HGET', key, name)
    if at then redis.call('HSET', key, name, int(tonumber(at) - ms)) end
  end
  local records, n = string.gsub(redis.call('HGET', key, 'record') or '', '(%S+) (%d+)',
    function(name, til) return name .. ' ' .. int(tonumber(til) - ms) end)
  if n > 0 then redis.call('HSET', key, 'record', records) end
end
-- Fences and sequences go on from where they were, which is ahead of a clock that was put back.
function shift.f(key)
  for _, name in ipairs(ms < 0 and {'seq', 'fence'} or {}) do
    local last = redis.call('HGET', key, name)
    if last then redis.call('HSET', key, name, int(tonumber(last) - ms * 1000)) end
  end
end
function shift.cs(key)
  local start, rest = string.match(redis.call('GET', key), '^(%d+)(.*)$')
  redis.call('SET', key, int(tonumber(start) - ms) .. rest, 'KEEPTTL')
end
function shift.cg(key)
  local since, rest = string.match(redis.call('GET', key), '^(%d+)(.*)$')
  redis.call('SET', key, int(tonumber(since) - ms * 1000) .. rest, 'KEEPTTL')
end
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  local kind = string.match(string.sub(key, #ARGV[1] + 1), '^{%d+}:(%a+)')
    or string.sub(key, #ARGV[1] + 1)
  if shift[kind] then shift[kind](key) end
  local left = redis.call('PTTL', key)
  if left >= 0 then
    if left <= ms then redis.call('DEL', key) else redis.call('PEXPIRE', key, int(left - ms)) end
  end
end
