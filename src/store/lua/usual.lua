-- The usual case of the steps of calls.lua, which this stands before: nobody else holds the lock, nobody
-- waits for it. Does what acquire.lua and release.lua do then, with fewer looks, and without the functions
-- of line.lua: to make them costs more than such a step. What is not usual is left to those, untouched.
--
-- KEYS, ARGV as calls.lua
local HELD = {x = 'h', s = 'hs', p = 'hp'}
local NOW, NOW_US

-- What the call at KEYS[k+1], ARGV[a+1] returns; nil, with nothing done, if it is not a usual one.
local function usual(k, a)
  local call, verb, h = redis.call, ARGV[a + 1], KEYS[k + 1]
  local member = (HELD[ARGV[a + 4]] or '') .. ARGV[a + 3]
  if verb == 'acquire' or verb == 'known' then
    -- Of a call without a record the eighth key is the next call's, or nobody's.
    local record = verb == 'known' and KEYS[k + 8] or h
    if call('EXISTS', h, KEYS[k + 3], KEYS[k + 4], record) ~= 0 then return nil end
    local f, lease = KEYS[k + 6], ARGV[a + 6]
    local fence = math.max((tonumber(call('HGET', f, 'fence') or '0')) + 1, NOW_US)
    -- Numbers below 2^53 go as they are: the server writes them with all their digits.
    call('HSET', f, 'fence', fence + ARGV[a + 7])
    call('ZADD', h, NOW + lease, member)
    call('PEXPIRE', h, lease)
    return {'held', fence, 0, 0, NOW_US}
  elseif verb == 'release' then
    local held = call('ZSCORE', h, member)
    if not held or call('EXISTS', h, KEYS[k + 3], KEYS[k + 4]) ~= 1 then return nil end
    -- Beside a holder in another mode than x there may be others.
    if ARGV[a + 4] ~= 'x' and call('ZCARD', h) ~= 1 then return nil end
    call('ZREM', h, member)
    return tonumber(held) > NOW and 'released' or 'lost'
  end
  return nil
end

-- KEYS and ARGV of a call by its verb.
local SIZES = {acquire = {7, 9}, known = {8, 9}, release = {7, 4}, downgrade = {7, 5}}
local out, k, a = {}, 0, 3
do
  local time = redis.call('TIME')
  -- Microseconds since 1970 stay below 2^53 until the year 2255, so a Lua number holds them exactly.
  NOW_US = tonumber(time[1]) * 1000000 + tonumber(time[2])
  NOW = math.floor(NOW_US / 1000)
  while a < #ARGV do
    -- An error is told by those who do it the long way.
    local well, answer = pcall(usual, k, a)
    if not well or not answer then break end
    out[#out + 1] = answer
    local size = SIZES[ARGV[a + 1]]
    k, a = k + size[1], a + size[2]
  end
end
if a >= #ARGV then return out end
-- Some of them: the rest the long way.
