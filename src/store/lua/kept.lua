-- Indexes, books and tombstones of ended jobs, and idempotency records. Stands behind line.lua, before jobs.lua, whose
-- comment lists the other keys.
--
-- done, dead     ZSET    ended job -> when it is forgotten, us
-- <kind>bytes    HASH    its job -> '<bytes kept> <stamp> <owner>', the owner only if there is one
-- <kind>by       ZSET    '<length of owner>:<owner>:<stamp>:<job>' at score 0: the jobs of one owner in a row, the one that
--                        is forgotten first in front. The stamp is the job's first score, 16 digits
-- <kind>owners   ZSET    owner -> the sum of its bytes; the common owner '' has the rest: f's <kind>_bytes - <kind>_owned
-- e:<owner>      ZSET    tombstone -> when it ends, ms
-- n:<owner>      ZSET    idempotency record '<record>:<lock>' -> when it ends, ms
-- A tombstone is a j with `gone` that has kept state, lock, owner, at, ended and reason alone.

-- Most dead jobs that a shard keeps: one that always fails must not fill the server.
local DEAD = 10000
local FILED = 0
-- Most bytes that a shard keeps of done jobs, and of dead ones, where no layer has said it.
local KEEP = 16777216
-- Bytes of an ended job besides its request or its response, about: its facts, and its entries here and there.
local SIZE = 512
-- Most ended jobs that one step evicts; the rest is left to the next ones.
local SHED = 96
-- Most tombstones of one owner in a shard, about 300 bytes each.
local TOMBS = 16384

-- How long it is known of a job at least that it was stored, ms.
local COPIES = 60000

-- Takes up to SCAN entries out of an index whose time, ms, is over.
local function sweep(index)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', int(NOW), 'LIMIT', '0', SCAN)
  if #old > 0 then redis.call('ZREM', index, unpack(old)) end
end

-- An index of records ends with the last of them, which may have got less time than it had.
local function end_with_last(index)
  local last = redis.call('ZRANGE', index, '-1', '-1', 'WITHSCORES')[2]
  if last then redis.call('PEXPIRE', index, int(math.max(tonumber(last) - NOW, 1))) end
end

-- Counts an idempotency record for its owner, until it ends.
local function count_record(record, ms, owner)
  local index = own('n:' .. owner)
  sweep(index)
  redis.call('ZADD', index, int(NOW + ms), string.sub(record, #SHARD + 3))
  end_with_last(index)
end

local function put_record(record, text, ms, owner)
  redis.call('SET', record, text, 'PX', int(ms))
  count_record(record, ms, owner)
end

local function extend_record(record, ms, owner)
  redis.call('PEXPIRE', record, int(ms))
  count_record(record, ms, owner)
end

local function drop_record(record, owner)
  redis.call('DEL', record)
  redis.call('ZREM', own('n:' .. owner), string.sub(record, #SHARD + 3))
  end_with_last(own('n:' .. owner))
end

-- Ms until the first record of this owner ends, if it has as many as it may; nil if there is room for another one.
local function records_full(owner, most)
  local index, now = own('n:' .. owner), '(' .. int(NOW)
  if redis.call('ZCOUNT', index, now, '+inf') < most then return nil end
  local first = redis.call('ZRANGEBYSCORE', index, now, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  return first[2] and tonumber(first[2]) - NOW or 1
end

-- Ms for which it must stay known of a job that it was stored: a copy of the call that stored it may come yet.
local function known_for(at)
  return math.min(COPIES - math.floor((NOW_US - tonumber(at or '0')) / 1000), COPIES)
end

-- Counts a tombstone for its owner. Beyond TOMBS the one that ends first goes, but for as long as it must be known.
local function count_tomb(id, ms, owner)
  local index = own('e:' .. owner)
  sweep(index)
  redis.call('ZADD', index, int(NOW + ms), id)
  keep_ttl(index, ms)
  if redis.call('ZCARD', index) <= TOMBS then return end
  local first = redis.call('ZRANGE', index, '0', '0')[1]
  local v = redis.call('HMGET', own('j:' .. first), 'gone', 'at')
  redis.call('ZREM', index, first)
  if not v[1] then return end
  local left = known_for(v[2])
  if left > 0 then redis.call('PEXPIRE', own('j:' .. first), int(left)) else redis.call('UNLINK', own('j:' .. first)) end
end

-- Leaves a tombstone of an ended job that is in no index any more, for the rest of its time: a client that finds nothing
-- would take the request for one that was never accepted. Returns how many keys there were of the job.
local function entomb(id)
  local key = own('j:' .. id)
  local v, left = redis.call('HMGET', key, 'state', 'lock', 'at', 'ended', 'owner', 'reason'), redis.call('PTTL', key)
  -- An index that is wrong takes nothing from a job that waits.
  if v[1] == 'queued' or v[1] == 'running' then return 0 end
  local gone = redis.call('UNLINK', key, own('b:' .. id), own('r:' .. id), own('t:' .. id))
  left = math.max(left, known_for(v[3]))
  if left <= 0 then return gone end
  if not v[1] then
    if v[3] then redis.call('HSET', key, 'at', v[3]) end
  else
    redis.call('HSET', key, 'gone', '1', 'state', v[1], 'lock', v[2] or '', 'at', v[3] or '0', 'ended', v[4] or '0')
    if (v[5] or '') ~= '' then redis.call('HSET', key, 'owner', v[5]) end
    if (v[6] or '') ~= '' then redis.call('HSET', key, 'reason', v[6]) end
    count_tomb(id, left, v[5] or '')
  end
  redis.call('PEXPIRE', key, int(left))
  return gone
end

local function row_of(owner) return #owner .. ':' .. owner .. ':' end

local function book(kind, id, owner, stamp, size)
  local text = int(size) .. ' ' .. stamp
  if owner ~= '' then
    text = text .. ' ' .. owner
    redis.call('ZINCRBY', own(kind .. 'owners'), int(size), owner)
    redis.call('HINCRBY', F, kind .. '_owned', int(size))
  end
  redis.call('HSET', own(kind .. 'bytes'), id, text)
  redis.call('ZADD', own(kind .. 'by'), '0', row_of(owner) .. stamp .. ':' .. id)
end

-- Takes jobs that have left an index out of its books. Returns the bytes that were kept of them.
local function unbook(kind, ids)
  local sum, owned = 0, 0
  for i, text in ipairs(redis.call('HMGET', own(kind .. 'bytes'), unpack(ids))) do
    local size, stamp, owner = string.match(text or '', '^(%d+) ?(%d*) ?(.*)$')
    if size then
      sum = sum + tonumber(size)
      redis.call('ZREM', own(kind .. 'by'), row_of(owner) .. stamp .. ':' .. ids[i])
      if owner ~= '' then
        owned = owned + tonumber(size)
        local left = redis.call('ZINCRBY', own(kind .. 'owners'), int(0 - tonumber(size)), owner)
        if tonumber(left) <= 0 then redis.call('ZREM', own(kind .. 'owners'), owner) end
      end
    end
  end
  redis.call('HDEL', own(kind .. 'bytes'), unpack(ids))
  if owned > 0 and redis.call('HINCRBY', F, kind .. '_owned', int(0 - owned)) < 0 then
    redis.call('HSET', F, kind .. '_owned', '0')
  end
  return sum
end

-- Begins the books of an index anew: those that it had are void, or have vanished.
local function new_books(kind)
  redis.call('UNLINK', own(kind .. 'bytes'), own(kind .. 'by'), own(kind .. 'owners'))
  redis.call('HDEL', F, kind .. '_owned')
end

-- Takes an ended job out of its index by hand, if it is there.
local function unfile(kind, id)
  if redis.call('ZREM', own(kind), id) == 0 then return end
  redis.call('HINCRBY', F, kind .. '_out', 1)
  redis.call('HINCRBY', F, kind .. '_bytes', int(0 - unbook(kind, {id})))
end

-- The owner whose oldest job makes room: `owner`, which has filed the newest, if it has more than an equal share of
-- `most`; else the one that has the most. So nobody drives out others by what is its own.
local function largest(kind, owner, sum, most)
  local owners = own(kind .. 'owners')
  local common = sum - tonumber(redis.call('HGET', F, kind .. '_owned') or '0')
  local number = redis.call('ZCARD', owners) + (common > 0 and 1 or 0)
  local mine = owner == '' and common or tonumber(redis.call('ZSCORE', owners, owner) or '0')
  if mine * number > most then return owner end
  local top = redis.call('ZRANGE', owners, '-1', '-1', 'WITHSCORES')
  if not top[1] or common >= tonumber(top[2]) then return '' end
  return top[1]
end

-- The job that makes room for the newest, which stays: the oldest of the largest owner, or, if that has no other one, of
-- all; nil if there is none.
local function victim(kind, newest, owner, sum, most)
  local row = row_of(largest(kind, owner, sum, most))
  local first = redis.call('ZRANGEBYLEX', own(kind .. 'by'), '[' .. row, '[' .. row .. '\255', 'LIMIT', '0', '2')
  for _, text in ipairs(first) do
    local id = string.sub(text, -#newest)
    if id ~= newest then return id, text end
  end
  for _, id in ipairs(redis.call('ZRANGE', own(kind), '0', '1')) do
    if id ~= newest then return id end
  end
  return nil
end

-- Evicts an ended job: its tombstone is left. Returns the bytes that were kept of it.
local function evict(kind, id, text)
  redis.call('ZREM', own(kind), id)
  entomb(id)
  local bytes = unbook(kind, {id})
  if text then redis.call('ZREM', own(kind .. 'by'), text) end
  return bytes
end

-- Forgets ended jobs whose keys a TTL has taken away, and evicts a dead one beyond the cap. The newest stays also where
-- its time ends before that of all others: its end has yet to be told. Returns the bytes of that.
local function trim(kind, newest, owner, sum)
  local index = own(kind)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', int(NOW_US), 'LIMIT', 0, SCAN)
  local bytes = 0
  if #old > 0 then
    redis.call('ZREM', index, unpack(old))
    bytes = unbook(kind, old)
  end
  if kind == 'dead' and redis.call('ZCARD', index) > DEAD then
    local id, text = victim(kind, newest, owner, sum - bytes, sum - bytes)
    if id then bytes = bytes + evict(kind, id, text) end
  end
  return bytes
end

-- Evicts jobs for the newest, of `size`, until no more than `most` of the bytes are left. Returns the sum that is left.
local function shed(kind, newest, owner, stamp, size, sum, most)
  for _ = 1, SHED do
    if sum <= most then return sum end
    local id, text = victim(kind, newest, owner, sum, most)
    if not id then return size end
    if redis.call('HEXISTS', own(kind .. 'bytes'), id) == 0 then
      -- The books have vanished, and begin anew.
      new_books(kind)
      book(kind, newest, owner, stamp, size)
      return size
    end
    sum = sum - evict(kind, id, text)
  end
  return sum
end

-- Puts an ended job into an index for ms, as the n-th, with the bytes that are kept of it. Scores are microseconds,
-- each its own, so that a list can go on behind any of them. The index lives a little longer than it must: most jobs
-- need not prolong it then. `sum`, `most`: the bytes there are, and may be, as f says. Returns the new sum, which is
-- the caller's to write down.
local function file(kind, id, ms, n, bytes, owner, sum, most)
  FILED = FILED + 1
  local index, size, stamp = own(kind), SIZE + bytes, string.format('%016.0f', NOW_US + ms * 1000 + FILED)
  redis.call('ZADD', index, stamp, id)
  local left = redis.call('PTTL', index)
  sum = tonumber(sum or '0')
  if left == -1 then
    new_books(kind)
    sum = 0
  end
  book(kind, id, owner, stamp, size)
  sum = sum + size
  local books = {own(kind .. 'bytes'), own(kind .. 'by'), own(kind .. 'owners')}
  if left < ms + 1 then
    left = math.floor(ms + ms / 8 + 1)
    redis.call('PEXPIRE', index, left)
    for _, key in ipairs(books) do redis.call('PEXPIRE', key, left) end
  elseif n % 16 == 0 then
    -- Had they vanished, they would be without an end.
    for _, key in ipairs(books) do redis.call('PEXPIRE', key, left) end
  elseif owner ~= '' then
    keep_ttl(books[3], left)
  end
  if n % 16 == 0 or kind == 'dead' then sum = sum - trim(kind, id, owner, sum) end
  most = tonumber(most or KEEP)
  if sum > most then sum = shed(kind, id, owner, stamp, size, sum, most) end
  return int(math.max(sum, 0))
end

-- As file, as one more, for those who count nothing else.
local function file_under(kind, id, ms, bytes, n, owner)
  local v = redis.call('HMGET', F, 'keep', kind .. '_bytes')
  local sum = file(kind, id, ms, n, bytes, owner, v[2] or nil, v[1] or nil)
  redis.call('HSET', F, kind .. '_bytes', sum)
end
