-- The usual case of the steps of calls.lua, which this stands before: nobody else holds the lock, nobody
-- waits for it. Does what acquire.lua, still.lua and release.lua do then, with fewer looks, and without the functions
-- of line.lua: to make them costs more than such a step. The first step that is not
-- usual, and all steps after it, are left to those.
--
-- What costs the server most, as counted by callgrind: the call itself (11,000 instructions), a list as
-- answer (5,000), the clock (7,000), a number made text (5,000, and 1,500 if it is known to be whole), each command
-- (3,000 to 8,000), each key and argument (1,500), a name made of another (1,000), each function and each variable it
-- shares (500).
--
-- KEYS, ARGV as calls.lua   Answers 'held <fence> <now us>' (nobody stands in line) and 'released'. If all
-- steps are usual, the reply is one text of them, joined by commas.
-- Leaves behind the answers of the steps it has done, and in `taken` whether the step it stopped at is a release whose
-- holder it has removed already.
local SPARE, AHEAD = 32, 600000000

local function usual(out, KEYS, ARGV, call)
  local find, sub, format = string.find, string.sub, string.format
  local n, count, k, a = 0, #ARGV, 0, 0
  local seconds, us, stamp, held, lease, till
  while a < count do
    local h = KEYS[k + 1]
    local verb, mode = string.byte(ARGV[a + 1], 1, 2)
    local grants, asks = verb == 97 or verb == 107, verb == 115 -- a, k, s
    -- 'lg:1:<ns>:{<shard>}:h:<name>'
    local at = find(h, '}:h:', 1, true)
    local tag, name = sub(h, 1, at + 1), sub(h, at + 4)
    local q, g = tag .. 'q:' .. name, tag .. 'g:' .. name
    if not stamp and (grants or asks or mode ~= 120) then
      local time = call('TIME')
      seconds, us = time[1], time[2]
      -- Microseconds since 1970, as text: sixteen digits until the year 2286.
      stamp = seconds .. (#us == 6 and us or sub('00000' .. us, -6))
      held = 'held ' .. stamp .. ' ' .. stamp
    end
    if grants or asks then
      if asks then
        -- If it is there it is in time, as below.
        if not call('ZSCORE', h, ARGV[a + 2]) or call('EXISTS', q, g) ~= 0 then break end
      else
        if call('EXISTS', h, q, g) ~= 0 then break end
        if verb == 107 and call('EXISTS', KEYS[k + 2]) ~= 0 then break end
      end
      local f = tag .. 'f'
      local last, answer, fence = call('HGET', f, 'fence'), held, stamp
      local now = seconds * 1000000 + us
      local next = last and last + SPARE + 1 or now + AHEAD
      -- A fence whose spare ones are not in the past is rare.
      if next > now then
        fence = format('%.0f', next)
        answer = 'held ' .. fence .. ' ' .. stamp
      end
      call('HSET', f, 'fence', fence)
      if grants then
        if lease ~= ARGV[a + 3] then
          lease = ARGV[a + 3]
          -- In two whole numbers that any build of the server writes fast.
          local ms = (us - us % 1000) / 1000 + lease
          till = format('%d%03d', seconds + (ms - ms % 1000) / 1000, ms % 1000)
        end
        call('ZADD', h, till, ARGV[a + 2])
        call('PEXPIRE', h, lease)
      end
      n = n + 1
      out[n] = answer
      k, a = k + (verb == 107 and 2 or 1), a + (asks and 2 or 3)
    elseif verb == 114 then -- r
      if mode == 120 then -- x
        -- Beside one in mode x there is no other in h, not even one that is past its end, and h ends with
        -- it: so if it is there it is in time, and the lock is free when it is out.
        if call('ZREM', h, ARGV[a + 2]) == 0 then break end
        if call('EXISTS', q, g) ~= 0 then return k, a, true end
      else
        -- One holder, in time, and nobody waits: if it is me, that was all.
        if call('ZCOUNT', h, '(' .. sub(stamp, 1, -4), '+inf') ~= 1 then break end
        if call('ZCARD', h) ~= 1 or call('EXISTS', q, g) ~= 0 then break end
        if call('ZREM', h, ARGV[a + 2]) == 0 then break end
      end
      n = n + 1
      out[n] = 'released'
      k, a = k + 1, a + 2
    else
      break
    end
  end
  return k, a, false
end

local out = {}
-- An error is told by those who do it the long way.
local well, k, a, taken = pcall(usual, out, KEYS, ARGV, redis.call)
if not well then
  taken = false
elseif a == #ARGV then
  return #out == 1 and out[1] or table.concat(out, ',')
end
