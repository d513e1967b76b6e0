-- The usual case of enqueue.lua, which stands behind it and whose KEYS and ARGV it has: a new request that waits for no
-- time, without a record, an owner, a group or a call, within the caps, behind a lock that one has alone, or that is
-- free and has no line that somebody watches. It does what enqueue.lua does then, with fewer looks, and without the functions
-- of line.lua and jobs.lua (see usual.lua for what costs what). The first that is not usual is left to
-- that, and all that come after it. If all are usual, the reply is one text: their positions, joined by commas.
local function usual(done, KEYS, ARGV, call, PUBLISH, OWN)
  local find, sub, match, format = string.find, string.sub, string.match, string.format
  local k, a, read, stamp, now = 0, 0, nil, nil, nil
  local again, most, skip, manned, jobs_here, bytes_here, jobs_all, bytes_all, keep
  while ARGV[a + 1] do
    done.k, done.a = k, a
    local h, id, envelope, terms = KEYS[k + 1], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
    if terms ~= read then
      read = terms
      again, most, skip, manned, jobs_here, bytes_here, jobs_all, bytes_all, keep = match(terms,
        '^ (%d) (%d+) (%d) (%d) 0 0 %d+ (%d+) (%d+) (%d+) (%d+) %d+ %d+ (%d+) %d+$')
      if not again then return end
      -- Of the quarter that is reserved, enqueue.lua says which job gets it.
      if jobs_all - 64 >= 0 then jobs_all = jobs_all - (jobs_all - jobs_all % 4) / 4 end
      if bytes_all - 1048576 >= 0 then bytes_all = bytes_all - (bytes_all - bytes_all % 4) / 4 end
    end
    if not again then return end
    local cut = find(h, '}:h:', 1, true)
    local tag, name = sub(h, 1, cut + 1), sub(h, cut + 4)
    local l, g, j, f = tag .. 'l:' .. name, tag .. 'g:' .. name, tag .. 'j:' .. id, tag .. 'f'
    if call('EXISTS', j, tag .. 'q:' .. name, tag .. 'lates') ~= 0 then return end
    if not stamp then
      local time = call('TIME')
      local us = time[2]
      -- Microseconds since 1970, as text: sixteen digits until the year 2286. Without the last three it is ms.
      stamp = time[1] .. (#us == 6 and us or sub('00000' .. us, -6))
      now = sub(stamp, 1, -4)
    end
    local holder = call('ZRANGE', h, '-1', '-1', 'WITHSCORES')
    local free, til = not holder[1], holder[2]
    -- In mode x, and in time.
    if not free and (not find(holder[1], '^[hj]%x') or til - now <= 0) then return end
    local watched, node = match(call('GET', tag .. 'watch') or '', '^(%d+):(%x*)$')
    if not watched or watched - now <= 0 then watched, node = nil, nil end
    if manned == '1' and not watched then return end
    if node == '' then node = nil end
    local shard, line, facts = call('HMGET', f, 'jobs', 'bytes', 'seq', 'keep'), call('ZCARD', g),
      call('HMGET', l, 'bytes', 'back', 'park')
    if free and (facts[2] or node and (line > 0 or facts[3])) then return end
    local bytes, jobs, last = #envelope, shard[1] or 0, shard[3]
    local here, all = (facts[1] or 0) + bytes, (shard[2] or 0) + bytes
    if jobs - jobs_all >= 0 or all - bytes_all > 0 or line - jobs_here >= 0 or here - bytes_here > 0 then return end
    local seq = stamp
    -- One that is not in the past is rare.
    if last and last - stamp >= 0 then seq = format('%.0f', last + 1) end

    bytes = format('%d', bytes)
    if shard[4] == keep then
      call('HSET', f, 'jobs', format('%d', jobs + 1), 'bytes', format('%d', all), 'seq', seq)
    else
      call('HSET', f, 'jobs', format('%d', jobs + 1), 'bytes', format('%d', all), 'seq', seq, 'keep', keep)
    end
    if again == '1' then
      call('HSET', j, 'state', 'queued', 'lock', name, 'seq', seq, 'bytes', bytes, 'at', stamp, 'max', most, 'again', '1')
    else
      call('HSET', j, 'state', 'queued', 'lock', name, 'seq', seq, 'bytes', bytes, 'at', stamp, 'max', most)
    end
    if skip == '1' then call('HSET', j, 'skip', '1') end
    call('SET', tag .. 'b:' .. id, envelope)
    call('ZADD', g, seq, id)
    call('HSET', l, 'bytes', format('%d', here))
    -- The first of a line, whose l may have an end.
    if here == #envelope then call('PERSIST', l) end
    local due, channel = tag .. 'due', (OWN or match(h, '^[^{]*')) .. 'w:'
    if free and node then
      -- It is offered the lock, for one accept window.
      local park = format('%.0f', now + 300)
      call('ZADD', h, park, 'j' .. id)
      call('PEXPIRE', h, '300')
      call('HSET', l, 'park', park)
      call('ZADD', due, now, name)
      call(PUBLISH, channel .. node, 'j ' .. name .. ' ' .. id)
    elseif free then
      -- Nobody would hear of it: a worker looks when it comes.
      call('ZADD', due, now, name)
    else
      local whose = match(holder[1], '^h%x+:(%x+)$')
      if whose then call(PUBLISH, channel .. whose, 'g ' .. name .. ' ' .. seq) end
      if not call('ZSCORE', due, name) then
        local soonest = call('ZRANGE', due, '0', '0', 'WITHSCORES')[2]
        call('ZADD', due, til, name)
        local known = soonest and soonest - now > 0 and til - soonest >= 0
        if node and not known then call(PUBLISH, channel .. node, 'd ' .. name) end
      end
    end
    done[#done + 1] = format('%d', line + 1)
    k, a = k + 1, a + 3
  end
  return 'all'
end

local done = {}
local well, how = pcall(usual, done, KEYS, ARGV, redis.call, PUBLISH, OWN)
if well and how == 'all' then return #done == 1 and done[1] or table.concat(done, ',') end
-- A step that failed has failed: it may have been done by half.
local broken = not well and how or nil
