-- The usual case of the steps of runs.lua, which stands behind it and whose KEYS and ARGV it has: a claim of the first
-- job of a free lock, or of one that was offered to it; and a success, with the run of the next of the line, an offer to
-- it, or as the last. No place of a process stands in line, and nothing has a deadline, an owner, a callback, a backoff
-- or failed runs. It does what claim.lua and settle.lua do then, with fewer looks, and without the functions of
-- line.lua and jobs.lua (see usual.lua for what costs what). The first step that is not usual is left to
-- those, and all that come after it. A step looks at all it needs before it writes anything.
-- Answers by a text for each step, and if all are usual and there is but one, by that alone: '+', the verdict
-- stands; 'c<job id> <fence> <attempt> <accepted at us> <1 = another stands behind it> <envelope>', a run has begun.
local SPARE, AHEAD = 32, 600000000
-- What is kept of an ended job besides its response (kept.lua).
local SIZE = 512
-- Most bytes of requests in one answer (claim.lua).
local MOST = 4194304

local function usual(done, KEYS, ARGV, call, PUBLISH, OWN)
  local find, sub, match, format = string.find, string.sub, string.match, string.format
  local k, a, changed, channel = 0, 0, done.changed, OWN or match(KEYS[1], '^[^{]*')
  local seconds, us, stamp, now, lease, till
  while ARGV[a + 1] do
    done.k, done.a = k, a
    local verb, id, me, h = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], KEYS[k + 1]
    local cut = find(h, '}:h:', 1, true)
    local tag, name = sub(h, 1, cut + 1), sub(h, cut + 4)
    local l, q, g, f, due = tag .. 'l:' .. name, tag .. 'q:' .. name, tag .. 'g:' .. name, tag .. 'f', tag .. 'due'
    if not stamp then
      local time = call('TIME')
      seconds, us = time[1], time[2]
      -- Microseconds since 1970, as text: sixteen digits until the year 2286. Without the last three it is ms.
      stamp = seconds .. (#us == 6 and us or sub('00000' .. us, -6))
      now = sub(stamp, 1, -4)
    end
    -- The run that begins: job, token, lease, whether another one stands behind it, the shard's last fence.
    local start, token, term, more, fence
    local job, v, left, line, shard, node, offered, ttl, looks, kept
    if verb == 'c' then
      line, left = call('ZRANGE', g, '0', '1'), call('HMGET', l, 'park', 'back')
      if line[1] ~= id or left[2] then return end
      local holders = call('ZRANGE', h, '0', '1')
      offered = holders[1]
      if offered and (holders[2] or offered ~= 'j' .. id) then return end
      if not offered and call('EXISTS', q) == 1 then return end
      start, token, term, more, fence = id, me, ARGV[a + 4], line[2], call('HGET', f, 'fence')
    else
      if ARGV[a + 4] ~= 'done' then return end
      job = tag .. 'j:' .. id
      v = call('HMGET', job, 'state', 'run', 'attempts', 'bytes', 'began', 'exp', 'owner', 'call', 'runs')
      if v[1] ~= 'running' or v[2] ~= me or v[6] or v[7] or v[8] or (v[9] or '') ~= '' then return end
      line, left = call('ZRANGE', g, '0', '2'), call('HMGET', l, 'bytes', 'back', 'park')
      if line[1] ~= id or left[2] or call('EXISTS', q) == 1 then return end
      shard = call('HMGET', f, 'jobs', 'bytes', 'done', 'keep', 'done_bytes', 'fence', 'done_owned')
      fence = shard[6]
      -- The index of those that are done, now and then trimmed or prolonged, or there is none.
      ttl, looks = call('PTTL', tag .. 'done'), ((shard[3] or 0) + 1) % 16 == 0
      if ttl == -1 or not shard[4] then return end
      kept = ttl == -2 and 0 or shard[5] or 0
      -- Below zero only after the books have vanished: the long way mends that.
      if kept - 0 < 0 then return end
      if kept + SIZE + #ARGV[a + 7] - shard[4] > 0 then return end
      if looks and call('ZRANGEBYSCORE', tag .. 'done', '-inf', stamp, 'LIMIT', '0', '1')[1] then return end
      if line[2] then
        local til
        til, node = match(call('GET', tag .. 'watch') or '', '^(%d+):(%x+)$')
        if not til or til - now <= 0 then return end
        if ARGV[a + 8] ~= '' then
          start, token, term, more = line[2], ARGV[a + 8], ARGV[a + 9], line[3]
        elseif left[3] then
          return
        end
      end
    end
    local facts, envelope
    if start then
      facts = call('HMGET', tag .. 'j:' .. start, 'state', 'run', 'attempts', 'at', 'exp', 'reason')
      envelope = call('GET', tag .. 'b:' .. start)
      -- Of a lease that is shorter than a beat the watcher is told (claim.lua).
      if term - 10000 < 0 then return end
      if facts[1] ~= 'queued' or facts[2] == token or facts[5] or not facts[4] or not envelope then return end
      if done.told > 0 and done.told + #envelope > MOST then return end
      local last = fence
      fence = stamp
      local next = last and last + SPARE + 1 or stamp + AHEAD
      -- A fence whose spare ones are not in the past is rare.
      if next - stamp > 0 then fence = format('%.0f', next) end
      if term ~= lease then
        lease = term
        -- In two whole numbers that any build of the server writes fast.
        local ms = (us - us % 1000) / 1000 + lease
        till = format('%d%03d', seconds + (ms - ms % 1000) / 1000, ms % 1000)
      end
    end

    if verb == 's' then
      if call('ZREM', h, 'h' .. me) == 0 then return end
      local life, response, index = ARGV[a + 5], ARGV[a + 7], tag .. 'done'
      call('HSET', job, 'state', 'done', 'ended', stamp, 'runs',
        (v[3] or '0') .. ' ' .. (v[5] or '0') .. ' ' .. stamp .. ' done')
      call('PEXPIRE', job, life)
      call('SET', tag .. 'r:' .. id, response, 'PX', life)
      local books, by, owners = index .. 'bytes', index .. 'by', index .. 'owners'
      -- With a new index the books of the one before are void.
      if ttl == -2 then
        call('UNLINK', tag .. 'b:' .. id, books, by, owners)
        if shard[7] then call('HDEL', f, 'done_owned') end
      else
        call('UNLINK', tag .. 'b:' .. id)
      end
      done.filed = done.filed + 1
      local size, bytes, filed = SIZE + #response, v[4] or 0, format('%016.0f', stamp + life * 1000 + done.filed)
      call('ZADD', index, filed, id)
      call('HSET', books, id, format('%d', size) .. ' ' .. filed)
      call('ZADD', by, '0', '0::' .. filed .. ':' .. id)
      if ttl - life < 1 then
        ttl = format('%.0f', life + (life - life % 8) / 8 + 1)
        call('PEXPIRE', index, ttl)
        call('PEXPIRE', books, ttl)
        call('PEXPIRE', by, ttl)
        if shard[7] then call('PEXPIRE', owners, ttl) end
      elseif looks then
        -- Had they vanished, they would be without an end.
        ttl = format('%.0f', ttl)
        call('PEXPIRE', books, ttl)
        call('PEXPIRE', by, ttl)
        if shard[7] then call('PEXPIRE', owners, ttl) end
      end
      local jobs, used, here = (shard[1] or 0) - 1, (shard[2] or 0) - bytes, (left[1] or 0) - bytes
      -- As in uncount.
      if jobs <= 0 then jobs, used = 0, 0 end
      jobs, used = format('%d', jobs), format('%d', used < 0 and 0 or used)
      local n, sum = format('%d', (shard[3] or 0) + 1), format('%d', kept + size)
      if start then
        call('HSET', f, 'jobs', jobs, 'bytes', used, 'done', n, 'done_bytes', sum, 'fence', fence)
      else
        call('HSET', f, 'jobs', jobs, 'bytes', used, 'done', n, 'done_bytes', sum)
      end
      call('ZREM', g, id)
      here = format('%d', here < 0 and 0 or here)
      if start then
        call('HSET', l, 'bytes', here)
      elseif not line[2] then
        call('ZREM', due, name)
        call('UNLINK', l)
      else
        -- The next one is offered the lock, for one accept window.
        local park = format('%.0f', now + 300)
        call('ZADD', h, park, 'j' .. line[2])
        call('PEXPIRE', h, '300')
        call('HSET', l, 'bytes', here, 'park', park)
        call('ZADD', due, now, name)
        call(PUBLISH, channel .. 'w:' .. node, 'j ' .. name .. ' ' .. line[2])
      end
      changed[#changed + 1] = id
    else
      -- Also where nothing was offered: it begins without room as well (see renew.lua).
      call('ZREM', h, offered or '')
      if left[1] then call('HDEL', l, 'park') end
      call('HSET', f, 'fence', fence)
    end
    if start then
      local attempt = format('%d', (facts[3] or 0) + 1)
      call('ZADD', h, till, 'h' .. token)
      call('PEXPIRE', h, lease)
      job = tag .. 'j:' .. start
      call('HSET', job, 'state', 'running', 'run', token, 'attempts', attempt, 'began', stamp, 'fence', fence)
      if (facts[6] or '') ~= '' then call('HSET', job, 'reason', '') end
      call('ZADD', due, till, name)
      changed[#changed + 1] = start
      done[#done + 1] = 'c' .. start .. ' ' .. fence .. ' ' .. attempt .. ' ' .. facts[4]
        .. (more and ' 1 ' or ' 0 ') .. envelope
      done.told = done.told + #envelope
    else
      done[#done + 1] = '+'
    end
    k, a = k + 1, a + (verb == 'c' and 5 or 10)
  end
  if #changed > 0 then call(PUBLISH, channel .. 'c', table.concat(changed, ' ')) end
  return 'all'
end

local done = {changed = {}, filed = 0, told = 0}
local well, how = pcall(usual, done, KEYS, ARGV, redis.call, PUBLISH, OWN)
if well and how == 'all' then
  return #done == 1 and done[1] or done
end
-- A step that failed has failed: it may have been done by half.
local broken = not well and how or nil
