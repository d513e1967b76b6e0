-- The charges that charge.lua has left; it tells what they are. k, a: how far it has come, n: of `out`; terms,
-- times, more: where it stands within an 'f' or '='.
local next_key, next_arg
-- How long a counter is blocked by its penalty.
local function blocked(c)
  local text, longest = call('GET', c.refusals), c.block
  c.strikes, c.strikes_left = 0, c.window
  if not text then return 0 end
  if text ~= 'blocked' then
    if not string.find(text, '^%d+$') then error('ERR value is not a number of refusals') end
    longest = c.window
  end
  -- Neither counts, nor blocks, for longer than from now on.
  local left = call('PTTL', c.refusals)
  if left == -1 or left > longest then
    call('PEXPIRE', c.refusals, int(longest))
    left = longest
  end
  if text == 'blocked' then return max(left, 0) end
  if left > 0 then c.strikes, c.strikes_left = number(text), left end
  return 0
end
-- So many refusals more; how long it is blocked by them.
local function strike(c, refused)
  local strikes = c.strikes + refused
  if strikes >= c.limit then
    call('SET', c.refusals, 'blocked', 'PX', int(c.block))
    return c.block
  end
  call('SET', c.refusals, int(strikes), 'PX', int(c.strikes_left))
  return 0
end
local function read()
  if more > 0 then
    next_key, next_arg = k + 1, a
    return {(counter(terms, KEYS[k + 1]))}, times
  end
  local counters, keys, args = {}, k, a + 3
  for i = 1, number(ARGV[a + 1]) do
    local c
    c, args = counter(args, KEYS[keys + 1])
    keys = keys + 1
    if ARGV[args] ~= '0' then
      keys = keys + 1
      c.refusals, c.limit, c.block = KEYS[keys], number(ARGV[args]), number(ARGV[args + 1])
    end
    args, counters[i] = args + 2, c
  end
  next_key, next_arg = keys, args
  return counters, number(ARGV[a + 2])
end
local function charge()
  local counters, times = read()
  local admitted = times
  for _, c in ipairs(counters) do
    look(c)
    c.room = c.cost > 0 and floor((c.most - c.used) / c.cost) or times
    c.blocked = c.refusals and blocked(c) or 0
    admitted = min(admitted, c.blocked > 0 and 0 or c.room)
  end
  admitted = max(admitted, 0)
  local refused = times - admitted
  for _, c in ipairs(counters) do
    if admitted > 0 and c.cost > 0 then
      c.spent = c.spent + admitted * c.cost
      write[c.kind](c)
    end
    if c.refusals and refused > 0 and c.blocked == 0 and c.room <= admitted and c.cost <= c.most then
      c.blocked = strike(c, refused)
    end
  end
  -- From here on nothing can fail.
  n = n + 1
  out[n] = admitted
  for _, c in ipairs(counters) do
    local one, two, three = told[c.kind](c)
    out[n + 1], out[n + 2], out[n + 3] = one, two, three
    n = n + (three and 3 or 2)
    if c.refusals then
      n = n + 1
      out[n] = c.blocked
    end
  end
end
while more > 0 or ARGV[a] do
  if more == 0 and ARGV[a] == 'f' then
    terms, times, more, a = a, number(ARGV[a + 4]), 1, a + 5
  elseif more == 0 and ARGV[a] == '=' then
    times, more, a = 1, number(ARGV[a + 1]), a + 2
  end
  local well, failed = pcall(charge)
  if not well then
    local text, all = own(failed)
    if all then return all end
    n = n + 1
    out[n] = text
  end
  k, a, more = next_key, next_arg, max(more - 1, 0)
end
return cmsgpack.pack(out)
