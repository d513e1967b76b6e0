-- The usual case of tasks_turn.lua, which stands behind it and whose KEYS and ARGV it has: one run has ended well, and
-- one task is due, while no worker is idle, nothing is limited, and others have swept within this second. It makes no
-- functions and few numbers, as tasks_one.lua. Answers by a text: '1', id, attempt, ' ', record.
-- A run's token is taken out once, by the turn that ends it: who takes it out has not been here before, and
-- need not look at zr. (A turn is said again until it is answered, so none comes after its successor.) What is not usual is left to tasks_turn.lua; `taken`: but for the token.
local taken = false
local token, number, lease, life = string.match(ARGV[1], '^u[^:]*:(%x*%.(%d+)) %d+ %d %d (%d+) (%d+) ')
if token then
  local call, sub, Z, run = redis.call, string.sub, KEYS[1], ARGV[3]
  local cut = string.find(Z, '}:z:', 1, true)
  local tag, name = sub(Z, 1, cut + 1), sub(Z, cut + 3)
  local L, F, W = tag .. 'zl' .. name, tag .. 'zf' .. name, tag .. 'zw' .. name
  -- What is of another type says so here, before anything is taken out that has no other place yet.
  local f = call('HMGET', F, 'paused', 'guard', 'swept')
  taken = call('ZREM', L, run) == 1
  local mine = f[2] and string.find(f[2], string.match(token, '^%x*'), 1, true)
  if taken and f[3] and not f[1] and not mine then
    local time = call('TIME')
    local second, us = time[1], time[2]
    if #us < 6 then us = sub('00000' .. us, -6) end
    local stamp = second .. us
    local since, lapse = stamp - f[3], call('ZRANGE', L, '0', '0', 'WITHSCORES')[2]
    local M = tag .. 'zm' .. name
    local odd = since >= 1000000 or since < 0 or (lapse and lapse - stamp <= 0)
    local there = odd and 2 or call('EXISTS', M, W)
    if there == 0 or (there == 1 and call('EXISTS', W) == 0) then
      local T, ended = tag .. 'zt' .. name, sub(run, 1, 22)
      call('HDEL', T, ended)
      if there == 1 then call('HDEL', M, ended) end
      local next = call('ZPOPMIN', Z)
      local id = next[1]
      if id then
        local record = next[2] - stamp <= 0 and call('HGET', T, id)
        if not record then
          call('ZADD', Z, next[2], id)
        else
          local attempt = '1'
          if there == 1 then attempt = string.match(call('HGET', M, id) or '0', '^%d+') + 1 end
          call('HINCRBY', F, 'bytes', '-' .. sub(ARGV[2], 2))
          call('HINCRBY', F, 'done', '1')
          -- In two texts that any build of the server writes fast.
          local part = us + lease
          local low = part % 1000000
          local till = string.format('%d%06d', second + (part - low) / 1000000, low)
          call('ZADD', L, till, id .. token)
          call('SET', KEYS[2], number .. ' 1 ' .. id, 'PX', life)
          return '1' .. id .. attempt .. ' ' .. record
        end
      end
    end
  end
end
