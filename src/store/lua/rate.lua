-- Counters of every kind, for charges.lua and settle_charge.lua. now.lua and window.lua stand before this.
--
-- Sliding windows: '<start ms> <length ms> <spent before> <spent>'. GCRA: '<since us> <parts owed> <parts that
-- would be owed without refunds> <which debt> <parts of a unit> <parts a tick> <tick us>'; until now it was paid off at that pace, from
-- now on at that of the call. Which debt it is, is the moment (us) when it began: from nothing, at another pace, or by a
-- clock that was put back. A refund is for one debt, since only within one it is known what was paid off first. Both
-- tell the time by themselves: a TTL that was lost, or is too long, refuses nobody, and comes back with the
-- next charge. What is said to begin in the future begins now: the clock was put back.
local call, number, floor, max, min = redis.call, tonumber, math.floor, math.max, math.min
local function int(n) return string.format('%.0f', n) end
local MOST, PARTS = 2 ^ 50, 2 ^ 52
-- a / b, rounded down, and what is over. (Division alone may round up.)
local function over(a, b)
  local rest = math.fmod(a, b)
  return (a - rest) / b, rest
end
-- a * b / c, rounded up, where a <= c. Nothing in it passes 2^53: b goes in by two bits at a time.
local function part(a, b, c)
  local whole, rest = 0, 0
  if a * b < 2 ^ 53 then
    whole, rest = over(a * b, c)
  else
    local bits = 4 ^ 26
    while bits >= 1 do
      local digit = floor(b / bits)
      local more
      b = b - digit * bits
      more, rest = over(rest * 4 + a * digit, c)
      whole, bits = whole * 4 + more, bits / 4
    end
  end
  return rest > 0 and whole + 1 or whole
end
local open, write, told = {}, {}, {}
function open.f(c)
  local spent, left = call('GET', c.key), 0
  if spent then
    if not string.find(spent, '^-?%d+$') then error('ERR value is not an integer') end
    left = call(UNTIL, c.key)
    local never = left == -1
    left = left - since
    if never or left > c.window then
      call('PEXPIRE', c.key, int(c.window))
      left = c.window
    end
  end
  c.fresh = left <= 0
  c.used, c.left = c.fresh and 0 or number(spent), c.fresh and c.window or left
  c.spent = c.used
end
function write.f(c)
  if c.fresh then
    call('SET', c.key, int(c.spent), 'PXAT', int(ms + c.window))
  else
    call('INCRBY', c.key, int(c.spent - c.used))
  end
end
function told.f(c) return c.spent, c.left end
function open.s(c)
  local text, length = call('GET', c.key), c.window
  c.start, c.before, c.spent = ms, 0, 0
  if text then
    local start, old, before, spent = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
    if not start then error('ERR value is not two windows') end
    start, length, before, spent = number(start), number(old), number(before), number(spent)
    c.repair = start > ms or length ~= c.window
    start = min(start, ms)
    if ms - start >= length * 2 then
      start, length, before, spent = ms, c.window, 0, 0
    elseif ms - start >= length then
      start, before, spent = start + length, spent, 0
    end
    if length ~= c.window then
      -- Windows of another quota: what counts now falls from now on, as if it had been spent in the one before.
      before = min(spent + part(start + length - ms, before, length), MOST)
      start, spent = ms, 0
    end
    c.start, c.before, c.spent = start, before, spent
  end
  c.left = c.start + c.window - ms
  c.used = min(c.spent + part(c.left, c.before, c.window), MOST)
end
function write.s(c)
  local text = string.format('%.0f %.0f %.0f %.0f', c.start, c.window, c.before, c.spent)
  call('SET', c.key, text, 'PX', int(c.spent > 0 and c.left + c.window or c.left))
end
function told.s(c) return c.before, c.spent, c.left end
function open.g(c)
  local text = call('GET', c.key)
  c.spent, c.gross, c.debt = 0, 0, '0'
  if text then
    local since, owed, gross, debt, pace = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (.+)$')
    if not since then error('ERR value is not a debt') end
    local unit, drain, tick = c.unit, c.drain, c.tick
    since = number(since)
    c.repair = since > now
    if pace ~= c.pace then
      unit, drain, tick = string.match(pace, '^(%d+) (%d+) (%d+)$')
      if not unit then error('ERR value is not a debt') end
      unit, c.repair = number(unit), true
    end
    local paid = floor(max(now - since, 0) / tick) * drain
    c.spent, c.gross = max(number(owed) - paid, 0), max(number(gross) - paid, 0)
    if c.gross > 0 and not c.repair then c.debt = debt end
    if unit ~= c.unit then
      for _, what in ipairs({'spent', 'gross'}) do
        local whole, rest = over(c[what], unit)
        c[what] = min(whole * c.unit + part(rest, c.unit, unit), PARTS)
      end
    end
  end
  c.used = c.spent
end
function write.g(c)
  -- What was charged counts in both, what is given back in one.
  if c.spent > c.used then c.gross = min(c.gross + c.spent - c.used, PARTS) end
  local ticks, rest = over(c.gross, c.drain)
  if rest > 0 then ticks = ticks + 1 end
  -- A thousand years are enough.
  local life = min(math.ceil(ticks * c.tick / 1000), 2 ^ 45)
  if life == 0 then
    call('DEL', c.key)
    return
  end
  if c.debt == '0' then c.debt = int(now) end
  local text = string.format('%.0f %.0f %.0f %s %s', now - now % c.tick, c.spent, c.gross, c.debt, c.pace)
  call('SET', c.key, text, 'PX', int(life))
end
function told.g(c) return c.spent, c.gross, number(c.debt) end
-- Reads the arguments of one counter; where they end.
local function counter(a, key)
  local kind = ARGV[a]
  local c = {key = key, kind = kind, most = number(ARGV[a + 1]), window = number(ARGV[a + 2]), cost = number(ARGV[a + 3])}
  if kind ~= 'g' then return c, a + 4 end
  c.unit, c.drain, c.tick = number(ARGV[a + 4]), number(ARGV[a + 5]), number(ARGV[a + 6])
  c.pace = ARGV[a + 4] .. ' ' .. ARGV[a + 5] .. ' ' .. ARGV[a + 6]
  return c, a + 7
end
local function look(c)
  open[c.kind](c)
  if c.repair then write[c.kind](c) end
end
-- What an error is to this step; nil if it is one of the server's, and so of all.
local function own(answer)
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
    local from = string.find(text, code, 1, true)
    if from then return nil, redis.error_reply(string.sub(text, from)) end
  end
  return text
end
