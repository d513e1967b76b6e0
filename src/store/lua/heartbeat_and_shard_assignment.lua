-- Heartbeat of a worker on a single server: registers it, keeps or takes its share of the shards,
-- and reports those with work that is due now or later. worker_registry.lua precedes this file.
--
-- Input:
--   KEYS[1]  workers (STRING)
--   KEYS[2]  paused (STRING)
--   KEYS[3]  and the following: watch of each shard (STRING)
--   ARGV[1]  node
--   ARGV[2]  lease, ms; 0 if the worker leaves
--   ARGV[3]  prefix of the namespace's channels
-- Output: {paused, own shards, busy shards, peers, ms}
--   paused       1 while jobs are paused
--   own shards   numbers of the shards, from 0
--   busy shards  those of them with a due, a delayed or an expiring job
--   peers        other live workers, at most 100
--   ms           time until the lease of the next worker by name ends, which this one observes; -1
--                if there is none
-- Complexity: O(shards + workers). An idle worker costs four commands (TIME, MGET, MSET, EXISTS),
-- for any number of shards and workers. For this, watches and `workers` contain their deadlines.
-- Idempotent. The shards of a dead worker are free when its lease ends.
-- All workers are notified if one has joined, left or died, or has given up shards.
-- A shard that is given up while other workers live stays vacant, without a node, until they have
-- had time to take it: it gets no offers, but does not count as unattended either.
local shard_count, VACANCY_GRACE_MS = #KEYS - 2, 1000

-- Divides the shards. Returns the shards of this node, the watches that it gives up, and other
-- watches to be deleted.
local function divide_shards(values, max_shards, is_last_worker)
  local own_shards, free_shards, vacated, stale_keys = {}, {}, {}, {}
  for i = 1, shard_count do
    local value = values[i + 2]
    local deadline_ms, owner = string.match(value or '', '^(%d+):(%x+)$')
    local is_live = deadline_ms and tonumber(deadline_ms) > now_ms
    if is_live and owner == node and #own_shards < max_shards then
      own_shards[#own_shards + 1] = i
    elseif is_live and owner ~= node then
      -- Another worker has it.
    elseif max_shards > 0 and not is_live then
      free_shards[#free_shards + 1] = i
    elseif is_live then
      vacated[#vacated + 1] = KEYS[i + 2]
    elseif value and (owner == node or is_last_worker) then
      stale_keys[#stale_keys + 1] = KEYS[i + 2]
    end
  end
  for _, i in ipairs(free_shards) do
    if #own_shards >= max_shards then break end
    own_shards[#own_shards + 1] = i
  end
  table.sort(own_shards)
  return own_shards, vacated, stale_keys
end

-- Returns the numbers of the shards with a due, a delayed or an expiring job.
local function shards_with_work(own_shards)
  local function index_keys(i)
    local shard_prefix = string.sub(KEYS[i + 2], 1, -6)
    return shard_prefix .. 'due', shard_prefix .. 'late', shard_prefix .. 'exp'
  end
  local keys, busy_shards = {}, {}
  for n, i in ipairs(own_shards) do
    keys[3 * n - 2], keys[3 * n - 1], keys[3 * n] = index_keys(i)
  end
  if #keys == 0 or redis.call('EXISTS', unpack(keys)) == 0 then return busy_shards end
  for _, i in ipairs(own_shards) do
    if redis.call('EXISTS', index_keys(i)) > 0 then busy_shards[#busy_shards + 1] = i - 1 end
  end
  return busy_shards
end

-- One command reads everything, and one writes it.
local values = redis.call('MGET', unpack(KEYS))
local peers, live_count, has_changed, successor_ms, registry, latest_ms =
  update_registry(values[1] or '')
local is_paused = values[2] and 1 or 0
local max_shards =
  (lease_ms == 0 or is_paused == 1) and 0 or math.ceil(shard_count / live_count)
local own_shards, vacated, stale_keys =
  divide_shards(values, max_shards, lease_ms == 0 and live_count == 0)
has_changed = has_changed or #vacated + #stale_keys > 0
local writes = {}
local function add_write(key, value) writes[#writes + 1], writes[#writes + 2] = key, value end
for _, i in ipairs(own_shards) do
  add_write(KEYS[i + 2], integer(now_ms + lease_ms) .. ':' .. node)
end
for _, key in ipairs(vacated) do
  if #peers > 0 and is_paused == 0 then
    add_write(key, integer(now_ms + VACANCY_GRACE_MS) .. ':')
  else
    stale_keys[#stale_keys + 1] = key
  end
end
if lease_ms > 0 then
  add_write(KEYS[1], registry)
elseif live_count > 0 then
  -- Works at `maxmemory` too: see renew.lua.
  redis.call('PERSIST', KEYS[1])
  -- With a TTL: the other workers may be dead, and nothing else would delete the key then.
  redis.call('SET', KEYS[1], registry, 'PX', integer(latest_ms))
elseif values[1] then
  stale_keys[#stale_keys + 1] = KEYS[1]
end
if #writes > 0 and redis.pcall('MSET', unpack(writes)).err then
  -- A live worker frees memory, so it has to be registered at `maxmemory` too: see renew.lua.
  redis.call('PERSIST', KEYS[1])
  redis.call('MSET', unpack(writes))
end
if #stale_keys > 0 then redis.call('DEL', unpack(stale_keys)) end
if has_changed then redis.call('PUBLISH', ARGV[3] .. 'e', 'workers') end
local busy_shards = shards_with_work(own_shards)
for n, i in ipairs(own_shards) do own_shards[n] = i - 1 end
return {is_paused, own_shards, busy_shards, peers, integer(successor_ms)}
