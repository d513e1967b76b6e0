-- What is nearly usual: a step about a lock that one other has in mode x, was offered, or has just left to this step, and
-- for which no job waits.
-- Does it as acquire.lua, still.lua and release.lua do then, with fewer looks, and goes on with usual.lua, which stands
-- before this. So a lock changes hands between two processes for 0.6 of what the long way costs.
--
-- Answers as usual.lua, or 'held <fence> <now us> <others in line> <sequence of the first of them, or 0>', or 'busy'
-- with what acquire.lua says then; nil if it is not so, and then nothing was changed.
--
-- What counts here are commands: each costs the server 12,000 instructions with its way through Lua.

-- The lock that the step before has offered, to whom, and until when; and one that it has left to the next step.
local offered, to, til, left

local function contended(call, verb, terms, who, lease, h, record)
  local match, format, sub = string.match, string.format, string.sub
  local at = string.find(h, '}:h:', 1, true)
  local tag, name = sub(h, 1, at + 1), sub(h, at + 4)
  local q, l, f = tag .. 'q:' .. name, tag .. 'l:' .. name, tag .. 'f'
  if offered ~= h and call('EXISTS', tag .. 'g:' .. name) ~= 0 then return end
  if record and call('EXISTS', record) ~= 0 then return end
  if not seconds then
    local time = call('TIME')
    seconds, us = time[1], time[2]
  end
  local now = seconds * 1000 + (us - us % 1000) / 1000
  local stamp = seconds .. (#us == 6 and us or sub('00000' .. us, -6))
  -- In two whole numbers that any build of the server writes fast.
  local function after(ms)
    local low = (now + ms) % 1000000
    return format('%d%06d', (now + ms - low) / 1000000, low)
  end
  -- The larger one of a number that is kept, and more, and of the server's time, or what is ahead of that, if none is kept.
  local function next_of(field, more, ahead)
    local last, number = call('HGET', f, field), stamp
    local least = last and last + more or stamp + ahead
    if least > tonumber(number) then number = format('%.0f', least) end
    call('HSET', f, field, number)
    return number
  end
  local function tell(token, text)
    call('PUBLISH', match(h, '^[^{]*') .. 'w:' .. match(token, ':(%x+)$'), text)
  end
  -- The first place, its sequence, mode and token; nil if it is over: who looks for the next drops it.
  local function first()
    local e = call('ZRANGE', q, '0', '0', 'WITHSCORES')
    if not e[1] then return false, '0' end
    local deadline, mode, token = match(e[1], '^(%d+):(%a)%d*:(%x+:%x+)$')
    if deadline and tonumber(deadline) > now then return e[1], e[2], mode, token end
  end

  if verb == 114 then -- r: out of h already
    local place, seq, mode, token = first()
    if not place or mode ~= 'x' then return end
    local came = match(terms, '^rx (%d+)$')
    -- As in release.lua.
    if came and tonumber(came) < tonumber(seq) and (call('HGET', f, 'seq') or 0) - stamp <= 0 then
      left = h
      return 'released'
    end
    call('ZREM', q, place)
    call('HDEL', l, '@' .. token)
    offered, to, til = h, 'o' .. token, after(300)
    call('ZADD', h, til, to)
    call('PEXPIRE', h, '300')
    tell(token, 'o ' .. name .. ' ' .. token)
    return 'released'
  end

  if left == h then
    -- By who gives back and asks again, with a fresh token. If it has a place all the same, by a call that came before
    -- this one: the long way.
    left = nil
    if call('HEXISTS', l, '@' .. sub(who, 2)) == 1 then return end
    local fence, _, seq = next_of('fence', SPARE + 1, AHEAD), first()
    call('ZADD', h, after(lease), who)
    call('PEXPIRE', h, lease)
    return 'held ' .. fence .. ' ' .. stamp .. ' ' .. call('ZCARD', q) .. ' ' .. seq
  end
  local members = offered == h and {to, til} or call('ZRANGE', h, '0', '1', 'WITHSCORES')
  offered = nil
  if #members ~= 2 or tonumber(members[2]) <= now then return end
  local kind, holder = match(members[1], '^([ho])(%x+:%x+)$')
  local me = sub(who, 2)
  if not kind then return end
  if holder == me then
    -- An offer is confirmed, a holder asks who waits.
    if (kind == 'o') == (verb == 115) then return end -- s
    local place, seq = first()
    if place == nil then return end
    local fence = next_of('fence', SPARE + 1, AHEAD)
    if kind == 'o' then
      call('ZADD', h, after(lease), who)
      call('ZREM', h, members[1])
      call('PEXPIRE', h, lease)
    end
    return 'held ' .. fence .. ' ' .. stamp .. ' ' .. (place and call('ZCARD', q) or 0) .. ' ' .. seq
  end

  local wait, old = match(terms, '^[ak]x %d+ (%d+) (%d+)$')
  if not wait then return end
  local mine, joined, line = '0', 0, call('ZCARD', q)
  if wait ~= '0' then
    -- Who has a place keeps it, and one that begins a line may find what is left of another: the long way.
    if call('HGET', l, '@' .. me) or (line == 0 and call('HLEN', l) > 4) then return end
    mine, joined = next_of('seq', 1, 0), 1
    if old ~= '0' and tonumber(old) < tonumber(mine) then mine = old end
    if kind == 'h' then tell(holder, 'q ' .. name .. ' ' .. mine) end
    local member = after(wait) .. ':x:' .. me
    call('ZADD', q, mine, member)
    call('HSET', l, '@' .. me, member)
    if line == 0 or call('PTTL', q) < tonumber(wait) then call('PEXPIRE', q, wait) end
    if call('PTTL', l) < tonumber(wait) then call('PEXPIRE', l, wait) end
    line = line + 1
  end
  return format('busy %d %d %s %d', math.max(members[2] - now, 1), line, mine, joined)
end

-- In a cluster messages may go by other channels: see channel.lua.
while well and string.sub(KEYS[#KEYS], -7) ~= '}:never' do
  local verb, mode = string.byte(ARGV[a + 1], 1, 2)
  -- Of releases only those whose holder is out of h.
  if mode ~= 120 or verb == 100 or (verb == 114 and not taken) then break end -- x, d, r
  local record, answer = verb == 107 and KEYS[k + 2] or nil, nil -- k
  well, answer = pcall(contended, redis.call, verb, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], KEYS[k + 1], record)
  if not well or not answer then break end
  taken = false
  out[#out + 1] = answer
  k, a = k + (record and 2 or 1), a + ((verb == 114 or verb == 115) and 2 or 3)
  -- Who gives back to ask again does so in the next step.
  if (offered ~= KEYS[k + 1] and left ~= KEYS[k + 1]) or string.byte(ARGV[a + 1] or 'r') == 114 then -- r
    offered, left = nil, nil
    well, k, a, taken = pcall(usual, out, KEYS, ARGV, redis.call, k, a)
  end
  if not well then
    taken = false
  elseif a == #ARGV then
    return #out == 1 and out[1] or table.concat(out, ',')
  end
end
