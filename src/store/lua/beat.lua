-- A worker's sign of life: it is counted among the living, keeps and takes its part of the shards, and hears
-- which of them have anything that is due or will be.
--
-- KEYS[1] workers   KEYS[2] paused   KEYS[3..] watch of each shard   ARGV[1] node   ARGV[2] lease, ms; 0 = it leaves
-- ARGV[3] channel prefix
-- Returns {1 = paused, its shards, those of them that have something, other living workers, at most 100, ms until the
-- lease ends of the one of them that this one looks after, or -1}; a shard is its number in KEYS, from 0
-- O(shards + workers). Five commands, whatever the number of shards and workers: this is what an idle worker costs. So
-- watches have their deadlines inside, and `workers` all of its. Idempotent; a dead worker's shards are free when its lease ends. All are told of who
-- comes, who leaves or has died, and of shards that were given up. What is given up while others live has a watch of nobody
-- until they have had the time to come for it: it is offered to none, and yet not without a worker.
local shards, HAND_OVER = #KEYS - 2, 1000

-- The shards of this node from now on, the watches that it gives up, and those to be deleted besides.
local function divide(values, most, alone)
  local mine, free, left, over = {}, {}, {}, {}
  for i = 1, shards do
    local value = values[i + 2]
    local til, whose = string.match(value or '', '^(%d+):(%x+)$')
    local live = til and tonumber(til) > now
    if live and whose == node and #mine < most then
      mine[#mine + 1] = i
    elseif live and whose ~= node then
      -- Another one has it.
    elseif most > 0 and not live then
      free[#free + 1] = i
    elseif live then
      left[#left + 1] = KEYS[i + 2]
    elseif value and (whose == node or alone) then
      over[#over + 1] = KEYS[i + 2]
    end
  end
  for _, i in ipairs(free) do
    if #mine >= most then break end
    mine[#mine + 1] = i
  end
  table.sort(mine)
  return mine, left, over
end

-- Those of the shards that have something due, late or with a deadline.
local function with_work(mine)
  local function indexes(i)
    local shard = string.sub(KEYS[i + 2], 1, -6)
    return shard .. 'due', shard .. 'late', shard .. 'exp'
  end
  local all, busy = {}, {}
  for n, i in ipairs(mine) do all[3 * n - 2], all[3 * n - 1], all[3 * n] = indexes(i) end
  if #all == 0 or redis.call('EXISTS', unpack(all)) == 0 then return busy end
  for _, i in ipairs(mine) do
    if redis.call('EXISTS', indexes(i)) > 0 then busy[#busy + 1] = i - 1 end
  end
  return busy
end

-- One command reads what there is, and one writes it.
local values = redis.call('MGET', unpack(KEYS))
local others, living, told, lapse, text, last = present(values[1] or '')
local paused = values[2] and 1 or 0
local most = (lease == 0 or paused == 1) and 0 or math.ceil(shards / living)
local mine, left, over = divide(values, most, lease == 0 and living == 0)
told = told or #left + #over > 0
local set = {}
local function write(key, value) set[#set + 1], set[#set + 2] = key, value end
for _, i in ipairs(mine) do write(KEYS[i + 2], int(now + lease) .. ':' .. node) end
for _, key in ipairs(left) do
  if #others > 0 and paused == 0 then write(key, int(now + HAND_OVER) .. ':') else over[#over + 1] = key end
end
if lease > 0 then
  write(KEYS[1], text)
elseif living > 0 then
  -- Also without room: see renew.lua.
  redis.call('PERSIST', KEYS[1])
  -- The others may have died: nobody would take it away then.
  redis.call('SET', KEYS[1], text, 'PX', int(last))
elseif values[1] then
  over[#over + 1] = KEYS[1]
end
if #set > 0 and redis.pcall('MSET', unpack(set)).err then
  -- Whoever lives makes room, and is to be known also where there is none.
  redis.call('PERSIST', KEYS[1])
  redis.call('MSET', unpack(set))
end
if #over > 0 then redis.call('DEL', unpack(over)) end
if told then redis.call('PUBLISH', ARGV[3] .. 'e', 'workers') end
local busy = with_work(mine)
for n, i in ipairs(mine) do mine[n] = i - 1 end
return {paused, mine, busy, others, int(lapse)}
