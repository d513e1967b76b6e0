-- The usual case of the steps of calls.lua, which this stands before: nobody else holds the lock, nobody
-- waits for it. Does what acquire.lua and release.lua do then, with fewer looks, and without the functions
-- of line.lua: to make them costs more than such a step. The first that is not usual is left to those,
-- and all that come after it.
--
-- What costs the server most, in order, as counted by callgrind: an argument or a key (1,500 instructions
-- each, read, copied, given to Lua), the clock (6,500, twice that with its numbers), a number made text or
-- text made a number (2,000 to 5,000), a list as answer (5,000), the commands (3,000 to 6,000).
--
-- KEYS, ARGV as calls.lua   Answers 'held <fence> <now us>' (nobody stands in line) and 'released'. If all
-- steps are usual, the reply is one text of them, joined by commas.
-- Leaves behind the answers so far, how far it has come in KEYS and in ARGV, and whether the step it has
-- stopped at is a release whose holder it has taken out already.
local SPARE = 32
local out, k, a, taken = {}, 0, 0, false

local function usual()
  local KEYS, ARGV, count, call = KEYS, ARGV, #ARGV, redis.call
  local seconds, us, stamp, mark
  local function look_at_the_clock()
    local time = call('TIME')
    seconds, us = tonumber(time[1]), tonumber(time[2])
    stamp = time[1] .. string.sub('00000' .. time[2], -6)
    -- In two halves, each of which is an integer of 32 bits: '%.0f' costs twice as much.
    local last = us + SPARE
    mark = string.format('%d%06d', seconds + (last >= 1000000 and 1 or 0), last % 1000000)
  end
  local ends, held = {}, nil
  while a < count do
    local text, h = ARGV[a + 1], KEYS[k + 1]
    local verb, mode = string.byte(text, 1, 2)
    if verb == 97 or verb == 107 then -- a, k
      if call('EXISTS', h, KEYS[k + 3], KEYS[k + 4]) ~= 0 then return end
      if verb == 107 and call('EXISTS', KEYS[k + 8]) ~= 0 then return end
      if not stamp then look_at_the_clock() end
      local f, lease = KEYS[k + 6], ARGV[a + 3]
      local last, answer = call('HGET', f, 'fence'), nil
      -- Both have sixteen digits until the year 2286. A mark that is not in the past is rare.
      if not last or (#last == 16 and last < stamp) then
        call('HSET', f, 'fence', mark)
        held = held or 'held ' .. stamp .. ' ' .. stamp
        answer = held
      else
        last = math.max(tonumber(last) + 1, tonumber(stamp))
        call('HSET', f, 'fence', string.format('%.0f', last + SPARE))
        answer = string.format('held %.0f ', last) .. stamp
      end
      local till = ends[lease]
      if not till then
        local ms = math.floor(us / 1000) + lease
        till = string.format('%d%03d', seconds + math.floor(ms / 1000), ms % 1000)
        ends[lease] = till
      end
      call('ZADD', h, till, ARGV[a + 2])
      call('PEXPIRE', h, lease)
      out[#out + 1] = answer
      k, a = k + (verb == 107 and 8 or 7), a + 3
    elseif verb == 114 then -- r
      if mode == 120 then -- x
        -- Beside one in mode x there is no other in h, not even one that is past its end, and h ends with
        -- it: so if it is there it is in time, and the lock is free when it is out.
        if call('ZREM', h, ARGV[a + 2]) == 0 then return end
        taken = call('EXISTS', KEYS[k + 3], KEYS[k + 4]) ~= 0
        if taken then return end
      else
        -- One holder, in time, and nobody waits: if it is me, that was all.
        if not stamp then look_at_the_clock() end
        if call('ZCOUNT', h, '(' .. string.sub(stamp, 1, -4), '+inf') ~= 1 then return end
        if call('ZCARD', h) ~= 1 or call('EXISTS', KEYS[k + 3], KEYS[k + 4]) ~= 0 then return end
        if call('ZREM', h, ARGV[a + 2]) == 0 then return end
      end
      out[#out + 1] = 'released'
      k, a = k + 7, a + 2
    else
      return
    end
  end
end

-- An error is told by those who do it the long way.
pcall(usual)
if a >= #ARGV then return #out == 1 and out[1] or table.concat(out, ',') end
