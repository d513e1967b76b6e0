-- Shows a namespace: a line a key, in their order, with what is in it and when it ends. It changes nothing.
-- For tests alone. Names all the keys of a namespace, so it does not scale, and need not.
-- What is over and not yet swept is left out, as every step does: such holders, and such places with what is noted of them.
--
-- ARGV[1] prefix of the namespace
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
-- When a key ends; below 0, never. What is left of it counts from when the server is asked, which is no moment that this
-- script knows: to name the keys alone takes as long as there are others, some ten milliseconds for 100,000.
local function end_of(key)
  local moment = redis.pcall('PEXPIRETIME', key)
  if type(moment) == 'number' then return moment end
  -- A server before 7.0. Asked within one millisecond it is exact.
  local before, left, after
  repeat
    before, left, after = clock(), redis.call('PTTL', key), clock()
  until before == after
  return left < 0 and left or after + left
end
local keys, lines = redis.call('KEYS', ARGV[1] .. '*'), {}
local now = clock()
local function over(place) return tonumber(string.match(place, '^%d+')) <= now end
local skip = {
  h = function(_, at) return tonumber(at) <= now end,
  q = function(place) return over(place) end,
  l = function(name, value) return string.sub(name, 1, 1) == '@' and over(value) end,
}
table.sort(keys)
for _, key in ipairs(keys) do
  local name, type = string.sub(key, #ARGV[1] + 1), redis.call('TYPE', key)['ok']
  local moment, rows = end_of(key), {}
  if type == 'string' then
    rows[1] = redis.call('GET', key)
  else
    local all = type == 'hash' and redis.call('HGETALL', key) or redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    local kind = string.match(name, '^{%d+}:(%a+)')
    local skipped = skip[kind] or function() return false end
    for i = 1, #all, 2 do
      if not skipped(all[i], all[i + 1]) then rows[#rows + 1] = all[i] .. '=' .. all[i + 1] end
    end
    -- Places stand in the order of their sequences, whatever their deadlines are now.
    if kind ~= 'q' then table.sort(rows) end
  end
  local ends = moment < 0 and 'stays' or 'ends ' .. string.format('%.0f', moment)
  if #rows > 0 then lines[#lines + 1] = name .. ' ' .. ends .. ' ' .. table.concat(rows, ' ') end
end
return lines
