-- The usual case of the steps of calls.lua, which this stands before: nobody else holds the lock, nobody
-- waits for it. Does what acquire.lua and release.lua do then, with fewer looks, and without the functions
-- of line.lua: to make them costs more than such a step. The first that is not usual is left to those,
-- untouched, and all that come after it.
--
-- KEYS, ARGV as calls.lua   A lock that was granted is told as one text, 'held <fence> 0 0 <now us>': less
-- for all to make and to read than a list.
-- Answers, and how far it has come in KEYS and in ARGV.
local out, k, a = {}, 0, 3

local function usual()
  local KEYS, ARGV, count, call = KEYS, ARGV, #ARGV, redis.call
  local time = call('TIME')
  -- Microseconds since 1970 stay below 2^53 until the year 2255, so a Lua number holds them exactly.
  local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local now = math.floor(now_us / 1000)
  -- Numbers are text at the server, and to make it is dear: once for each lease and each spare, and of the
  -- time's own text where that will do.
  local stamp = time[1] .. string.sub('00000' .. time[2], -6)
  local live, held = '(' .. string.sub(stamp, 1, -4), 'held ' .. stamp .. ' 0 0 ' .. stamp
  local ends, marks = {}, {}
  while a < count do
    local verb, h, mode = ARGV[a + 1], KEYS[k + 1], ARGV[a + 4]
    local member = (mode == 'x' and 'h' or 'h' .. mode) .. ARGV[a + 3]
    if verb == 'acquire' or verb == 'known' then
      if call('EXISTS', h, KEYS[k + 3], KEYS[k + 4]) ~= 0 then return end
      if verb == 'known' and call('EXISTS', KEYS[k + 8]) ~= 0 then return end
      local f, lease, spare = KEYS[k + 6], ARGV[a + 6], ARGV[a + 7]
      local last, mark, answer = tonumber(call('HGET', f, 'fence') or '0'), nil, nil
      if last < now_us then
        mark = marks[spare] or string.format('%.0f', now_us + spare)
        marks[spare], answer = mark, held
      else
        mark = string.format('%.0f', last + 1 + spare)
        answer = string.format('held %.0f 0 0 ', last + 1) .. stamp
      end
      call('HSET', f, 'fence', mark)
      local till = ends[lease] or string.format('%.0f', now + lease)
      ends[lease] = till
      call('ZADD', h, till, member)
      call('PEXPIRE', h, lease)
      out[#out + 1] = answer
      k, a = k + (verb == 'known' and 8 or 7), a + 9
    elseif verb == 'release' then
      -- One holder, in time, and nobody waits: if it is me, that was all. (Beside one in mode x there is
      -- no other, not even one that is past its end: who came after it has swept it out.)
      if call('ZCOUNT', h, live, '+inf') ~= 1 then return end
      if mode ~= 'x' and call('ZCARD', h) ~= 1 then return end
      if call('EXISTS', KEYS[k + 3], KEYS[k + 4]) ~= 0 then return end
      if call('ZREM', h, member) == 0 then return end
      out[#out + 1] = 'released'
      k, a = k + 7, a + 4
    else
      return
    end
  end
end

-- An error is told by those who do it the long way.
pcall(usual)
if a >= #ARGV then return out end
