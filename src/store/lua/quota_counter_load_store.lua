-- Prelude of the quota scripts: loads and stores the value of a counter, of a fixed window (kind
-- 'f'), a sliding window ('s') or GCRA ('g').
--
-- Included by charge_batch.lua and settle_charge.lua. Expects `now_us` of server_time.lua, and
-- choose_window_ttl_command.lua.
-- Provides:
--   parse_counter  reads a counter's arguments
--   load_counter   reads its value, and repairs it
--   store_state    per kind: writes the value
--   reply_state    per kind: returns the numbers of the reply
--   charge_error   separates errors of one charge from errors of the server
--   integer, MAX_UNITS, MAX_PARTS, and short names of functions
--
-- Values (STRING):
--   'f'  units spent; the key expires with the window
--   's'  '<start ms> <length ms> <spent in the previous window> <spent>'
--   'g'  '<since us> <parts owed> <parts owed without refunds> <debt> <parts of a unit>
--        <parts a tick> <tick us>', without the line break
-- - A GCRA debt is paid off at the stored rate until this call, then at the rate of the call.
-- - <debt> is the time (us) at which the debt began: with the first charge of a counter without
--   debt, with a change of the rate, or when the clock was put back. A refund is valid for one debt
--   only, since the order of payment is known only within one.
-- - Sliding windows and GCRA carry their own times. A TTL that was lost or is too long refuses
--   nothing, and the next charge sets it again.
-- - A start in the future becomes the present: the clock was put back.
local call, to_number, floor, max, min = redis.call, tonumber, math.floor, math.max, math.min
local function integer(number) return string.format('%.0f', number) end
-- Limits of usage and of a debt (`MAX_UNITS`, `MAX_DEBT_PARTS`). Lua counts exactly up to 2^53.
local MAX_UNITS, MAX_PARTS = 2 ^ 50, 2 ^ 52

-- Returns a / b rounded down, and the remainder. Division alone may round up.
local function div_floor(a, b)
  local remainder = math.fmod(a, b)
  return (a - remainder) / b, remainder
end

-- Returns a * b / c rounded up, if a <= c. No intermediate result exceeds 2^53: b is multiplied two
-- bits at a time.
local function mul_div_ceil(a, b, c)
  local whole, remainder = 0, 0
  if a * b < 2 ^ 53 then
    whole, remainder = div_floor(a * b, c)
  else
    local place_value = 4 ^ 26
    while place_value >= 1 do
      local digit = floor(b / place_value)
      local carry
      b = b - digit * place_value
      carry, remainder = div_floor(remainder * 4 + a * digit, c)
      whole, place_value = whole * 4 + carry, place_value / 4
    end
  end
  return remainder > 0 and whole + 1 or whole
end

-- Functions by kind. Loading sets `used_before`, the usage before this call; an unparsable value is
-- an error.
local load_state, store_state, reply_state = {}, {}, {}

function load_state.f(counter)
  local stored, remaining_ms = call('GET', counter.key), 0
  if stored then
    if not string.find(stored, '^-?%d+$') then error('ERR value is not an integer') end
    remaining_ms = call(EXPIRY_COMMAND, counter.key)
    local has_no_ttl = remaining_ms == -1
    remaining_ms = remaining_ms - expiry_base_ms
    if has_no_ttl or remaining_ms > counter.window_ms then
      call('PEXPIRE', counter.key, integer(counter.window_ms))
      remaining_ms = counter.window_ms
    end
  end
  counter.is_new_window = remaining_ms <= 0
  counter.used_before, counter.remaining_ms =
    counter.is_new_window and 0 or to_number(stored),
    counter.is_new_window and counter.window_ms or remaining_ms
  counter.spent = counter.used_before
end

function store_state.f(counter)
  if counter.is_new_window then
    call(
      'SET', counter.key, integer(counter.spent), 'PXAT', integer(now_ms + counter.window_ms)
    )
  else
    call('INCRBY', counter.key, integer(counter.spent - counter.used_before))
  end
end

function reply_state.f(counter) return counter.spent, counter.remaining_ms end

function load_state.s(counter)
  local stored, window_ms = call('GET', counter.key), counter.window_ms
  counter.start_ms, counter.previous_spent, counter.spent = now_ms, 0, 0
  if stored then
    local start_ms, old_window_ms, previous_spent, spent =
      string.match(stored, '^(%d+) (%d+) (%d+) (%d+)$')
    if not start_ms then error('ERR value is not two windows') end
    start_ms, window_ms, previous_spent, spent =
      to_number(start_ms), to_number(old_window_ms), to_number(previous_spent), to_number(spent)
    counter.needs_repair = start_ms > now_ms or window_ms ~= counter.window_ms
    start_ms = min(start_ms, now_ms)
    if now_ms - start_ms >= window_ms * 2 then
      start_ms, window_ms, previous_spent, spent = now_ms, counter.window_ms, 0, 0
    elseif now_ms - start_ms >= window_ms then
      start_ms, previous_spent, spent = start_ms + window_ms, spent, 0
    end
    if window_ms ~= counter.window_ms then
      -- The quota has another window now. The current usage becomes that of a previous window which
      -- ends now, so it declines over the new length.
      previous_spent = min(
        spent + mul_div_ceil(start_ms + window_ms - now_ms, previous_spent, window_ms), MAX_UNITS
      )
      start_ms, spent = now_ms, 0
    end
    counter.start_ms, counter.previous_spent, counter.spent = start_ms, previous_spent, spent
  end
  counter.remaining_ms = counter.start_ms + counter.window_ms - now_ms
  counter.used_before = min(
    counter.spent + mul_div_ceil(counter.remaining_ms, counter.previous_spent, counter.window_ms),
    MAX_UNITS
  )
end

function store_state.s(counter)
  local stored = string.format(
    '%.0f %.0f %.0f %.0f',
    counter.start_ms, counter.window_ms, counter.previous_spent, counter.spent
  )
  call(
    'SET', counter.key, stored, 'PX',
    integer(
      counter.spent > 0 and counter.remaining_ms + counter.window_ms or counter.remaining_ms
    )
  )
end

function reply_state.s(counter)
  return counter.previous_spent, counter.spent, counter.remaining_ms
end

function load_state.g(counter)
  local stored = call('GET', counter.key)
  counter.spent, counter.gross, counter.debt = 0, 0, '0'
  if stored then
    local since_us, owed, gross, debt, rate_text =
      string.match(stored, '^(%d+) (%d+) (%d+) (%d+) (.+)$')
    if not since_us then error('ERR value is not a debt') end
    local unit_parts, tick_parts, tick_us = counter.unit_parts, counter.tick_parts, counter.tick_us
    since_us = to_number(since_us)
    counter.needs_repair = since_us > now_us
    if rate_text ~= counter.pace_text then
      unit_parts, tick_parts, tick_us = string.match(rate_text, '^(%d+) (%d+) (%d+)$')
      if not unit_parts then error('ERR value is not a debt') end
      unit_parts, counter.needs_repair = to_number(unit_parts), true
    end
    local paid = floor(max(now_us - since_us, 0) / tick_us) * tick_parts
    counter.spent, counter.gross =
      max(to_number(owed) - paid, 0), max(to_number(gross) - paid, 0)
    if counter.gross > 0 and not counter.needs_repair then counter.debt = debt end
    if unit_parts ~= counter.unit_parts then
      for _, field in ipairs({'spent', 'gross'}) do
        local whole, remainder = div_floor(counter[field], unit_parts)
        counter[field] = min(
          whole * counter.unit_parts + mul_div_ceil(remainder, counter.unit_parts, unit_parts),
          MAX_PARTS
        )
      end
    end
  end
  counter.used_before = counter.spent
end

function store_state.g(counter)
  -- A charge adds to both debts. A refund reduces only `spent`.
  if counter.spent > counter.used_before then
    counter.gross = min(counter.gross + counter.spent - counter.used_before, MAX_PARTS)
  end
  local ticks, remainder = div_floor(counter.gross, counter.tick_parts)
  if remainder > 0 then ticks = ticks + 1 end
  -- At most 2^45 ms, about a thousand years.
  local ttl_ms = min(math.ceil(ticks * counter.tick_us / 1000), 2 ^ 45)
  if ttl_ms == 0 then
    call('DEL', counter.key)
    return
  end
  if counter.debt == '0' then counter.debt = integer(now_us) end
  local stored = string.format(
    '%.0f %.0f %.0f %s %s',
    now_us - now_us % counter.tick_us,
    counter.spent, counter.gross, counter.debt, counter.pace_text
  )
  call('SET', counter.key, stored, 'PX', integer(ttl_ms))
end

function reply_state.g(counter) return counter.spent, counter.gross, to_number(counter.debt) end

-- Reads the arguments of one counter. Returns the counter, and the index of the next argument.
local function parse_counter(arg_index, key)
  local kind = ARGV[arg_index]
  local counter = {
    key = key, kind = kind,
    limit = to_number(ARGV[arg_index + 1]), window_ms = to_number(ARGV[arg_index + 2]),
    cost = to_number(ARGV[arg_index + 3])
  }
  if kind ~= 'g' then return counter, arg_index + 4 end
  counter.unit_parts, counter.tick_parts, counter.tick_us =
    to_number(ARGV[arg_index + 4]), to_number(ARGV[arg_index + 5]), to_number(ARGV[arg_index + 6])
  counter.pace_text =
    ARGV[arg_index + 4] .. ' ' .. ARGV[arg_index + 5] .. ' ' .. ARGV[arg_index + 6]
  return counter, arg_index + 7
end

-- Reads a counter. Writes it back if the quota has changed or the clock was put back.
local function load_counter(counter)
  load_state[counter.kind](counter)
  if counter.needs_repair then store_state[counter.kind](counter) end
end

-- Returns the text of an error that belongs to one charge. Returns nil and an error reply if the
-- server refuses all of them.
local function charge_error(answer)
  local text = type(answer) == 'table' and answer.err or tostring(answer)
  for _, code in ipairs({'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}) do
    local start = string.find(text, code, 1, true)
    if start then return nil, redis.error_reply(string.sub(text, start)) end
  end
  return text
end
