-- The usual case of tasks_push.lua, which stands behind it and whose KEYS, ARGV and answers it has: one task, without
-- a unique key. It makes no functions and few numbers: as counted by callgrind, each number that is read or written
-- costs the server 2,000 instructions, each table and function some 1,000, a command that does nothing 2,500.
-- If somebody has to be told of the task, the rest does that; `one` says of which.
local number, slot, delay, one
if not ARGV[5] then number, slot, delay = string.match(ARGV[3], '^(%d+) (%d+) (%d+) %-$') end
if number then
  local call, Z, P, id, record = redis.call, KEYS[1], KEYS[2], ARGV[2], ARGV[4]
  local most, room = string.match(ARGV[1], '^1 (%d+) (%d+)$')
  local cut = string.find(Z, '}:z:', 1, true)
  local tag, name = string.sub(Z, 1, cut + 1), string.sub(Z, cut + 3)
  local T, F = tag .. 'zt' .. name, tag .. 'zf' .. name
  local time = call('TIME')
  local second, us = tonumber(time[1]), time[2]
  local seq = time[1] .. (#us == 6 and us or string.sub('00000' .. us, -6))
  -- They would say what is not ours; nothing has been written yet.
  local f, waiting = call('HMGET', F, 'seq', 'bytes', 'woke'), call('ZCARD', Z)
  slot = '#' .. slot
  local stood = call('BITFIELD', P, 'GET', 'u40', '#0', 'SET', 'u40', slot, number)
  if stood[1] > second or stood[1] < second - 60 then
    call('BITFIELD', P, 'SET', 'u40', '#0', time[1])
    call('EXPIRE', P, '600')
  end
  if stood[2] ~= 0 then
    local before, mine = stood[2], tonumber(number)
    if before == mine then return '1' end
    if before > mine then
      -- A copy that comes late must not hide a newer one.
      call('BITFIELD', P, 'SET', 'u40', slot, before)
      return call('HEXISTS', T, id) == 1 and '1' or '?'
    end
  end
  local bytes = (f[2] or 0) + #record + 16
  if waiting >= tonumber(most) or bytes > tonumber(room) then
    call('BITFIELD', P, 'SET', 'u40', slot, stood[2])
    return 'f'
  end
  local last = f[1]
  if last and (#last ~= 16 or last >= seq) then
    local now = second * 1000000 + us
    -- One that is far ahead is of a clock that was put back.
    if last - now <= 1000000 then seq = string.format('%.0f', last + 1) end
  end
  local stored = redis.pcall('HSET', T, id, seq .. record)
  if stored ~= 1 and stored ~= 0 then
    -- It is of another type: this push must not be known as one that was stored.
    call('BITFIELD', P, 'SET', 'u40', slot, stood[2])
    return '!'
  end
  call('ZADD', Z, delay == '0' and seq or string.format('%.0f', seq + delay), id)
  call('HSET', F, 'seq', seq, 'bytes', bytes)
  call('HINCRBY', F, 'pushed', '1')
  local first, late = waiting == 0, false
  if not first then
    local long_ago = second * 1000000 + us - 50000
    if (f[3] or 0) - long_ago < 0 then
      -- Nobody was woken lately: one look says both, who is first and whether he waits for too long.
      local head = call('ZRANGE', Z, '0', '0', 'WITHSCORES')
      first, late = head[1] == id, head[2] - long_ago < 0
    else
      first = call('ZRANK', Z, id) == 0
    end
  end
  if not first and not late then return '1' end
  one = {F = F, W = tag .. 'zw' .. name, sooner = first and (delay ~= '0' or seq - (second * 1000000 + us) > 0)}
end
