-- The usual case of the steps of calls.lua, which this stands before: nobody else holds the lock, nobody
-- waits for it. Does what acquire.lua and release.lua do then, with fewer looks, and without the functions
-- of line.lua: to make them costs more than such a step. The first that is not usual is left to those,
-- and all that come after it.
--
-- What costs the server most, as counted by callgrind: the call itself (11,000 instructions), a list as
-- answer (5,000), the clock (7,000, and 5,000 for its numbers), a number made text (5,000), each command
-- (3,000 to 8,000), each key and argument (1,500), each function and each variable it shares (500).
--
-- KEYS, ARGV as calls.lua   Answers 'held <fence> <now us>' (nobody stands in line) and 'released'. If all
-- steps are usual, the reply is one text of them, joined by commas.
-- Leaves behind the answers of those it has done, and whether the step it has stopped at is a release whose
-- holder it has taken out already.
local SPARE = 32

local function usual(out, KEYS, ARGV, call)
  local k, a, n, count = 0, 0, 0, #ARGV
  local seconds, us, stamp, held, mark, lease, till
  -- A number that goes to a command is made text there; one that goes to several, once here.
  local text_of = count > 8 and function(number) return string.format('%.0f', number) end
  while a < count do
    local text, h = ARGV[a + 1], KEYS[k + 1]
    local verb, mode = string.byte(text, 1, 2)
    local grants = verb == 97 or verb == 107 -- a, k
    if not stamp and (grants or mode ~= 120) then
      local time = call('TIME')
      seconds, us = tonumber(time[1]), tonumber(time[2])
      -- Microseconds since 1970, as text: sixteen digits until the year 2286.
      stamp = time[1] .. string.sub('00000' .. time[2], -6)
      held, mark = 'held ' .. stamp .. ' ' .. stamp, seconds * 1000000 + us + SPARE
      if text_of then mark = text_of(mark) end
    end
    if grants then
      if call('EXISTS', h, KEYS[k + 3], KEYS[k + 4]) ~= 0 then return end
      if verb == 107 and call('EXISTS', KEYS[k + 8]) ~= 0 then return end
      local last, answer, ahead = call('HGET', KEYS[k + 6], 'fence'), held, mark
      -- A mark that is not in the past is rare.
      if last and (#last ~= 16 or last >= stamp) then
        local fence = math.max(tonumber(last), seconds * 1000000 + us - 1) + 1
        answer, ahead = string.format('held %.0f ', fence) .. stamp, fence + SPARE
      end
      call('HSET', KEYS[k + 6], 'fence', ahead)
      if lease ~= ARGV[a + 3] then
        lease = ARGV[a + 3]
        till = seconds * 1000 + math.floor(us / 1000) + lease
        if text_of then till = text_of(till) end
      end
      call('ZADD', h, till, ARGV[a + 2])
      call('PEXPIRE', h, lease)
      n = n + 1
      out[n] = answer
      k, a = k + (verb == 107 and 8 or 7), a + 3
    elseif verb == 114 then -- r
      if mode == 120 then -- x
        -- Beside one in mode x there is no other in h, not even one that is past its end, and h ends with
        -- it: so if it is there it is in time, and the lock is free when it is out.
        if call('ZREM', h, ARGV[a + 2]) == 0 then return end
        if call('EXISTS', KEYS[k + 3], KEYS[k + 4]) ~= 0 then return 'taken' end
      else
        -- One holder, in time, and nobody waits: if it is me, that was all.
        if call('ZCOUNT', h, '(' .. string.sub(stamp, 1, -4), '+inf') ~= 1 then return end
        if call('ZCARD', h) ~= 1 or call('EXISTS', KEYS[k + 3], KEYS[k + 4]) ~= 0 then return end
        if call('ZREM', h, ARGV[a + 2]) == 0 then return end
      end
      n = n + 1
      out[n] = 'released'
      k, a = k + 7, a + 2
    else
      return
    end
  end
  return 'done'
end

local out = {}
-- An error is told by those who do it the long way.
local well, how = pcall(usual, out, KEYS, ARGV, redis.call)
if well and how == 'done' then return #out == 1 and out[1] or table.concat(out, ',') end
local taken = well and how == 'taken'
