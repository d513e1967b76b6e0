-- Prelude of heartbeat_and_shard_assignment.lua and cluster_heartbeat.lua: the registry of live
-- workers.
--
-- Provides: `now_ms`, `node`, `lease_ms` (0: the worker leaves), `integer`, `update_registry`.
-- Expects: ARGV[1] node, ARGV[2] lease in ms.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function integer(number) return string.format('%.0f', number) end
local node, lease_ms = ARGV[1], tonumber(ARGV[2])

-- Adds this worker to the registry, or removes it, and removes expired workers. `registry`: value
-- of the key `workers`, '<deadline ms>:<node>' of each, separated by blanks. Returns:
-- - other live workers, at most the last 100 of the registry;
-- - the number of live workers, including this one unless it leaves;
-- - true if this worker has joined or left, or another one has expired, which only the first call
--   after the expiry reports;
-- - ms until the lease of the next worker by name ends; the first one follows the last; -1 if there
--   is no other;
-- - the new value of the registry;
-- - ms until the last lease of the other workers ends.
local function update_registry(registry)
  local peers, live_count, was_registered, entries, latest_ms = {}, 0, false, {}, 0
  local successor, first, has_lapsed
  for deadline_ms, worker in string.gmatch(registry, '(%d+):(%x+)') do
    local remaining_ms = tonumber(deadline_ms) - now_ms
    if remaining_ms > 0 and worker == node then
      was_registered = true
    elseif remaining_ms <= 0 and worker ~= node then
      has_lapsed = true
    elseif remaining_ms > 0 then
      live_count, latest_ms = live_count + 1, math.max(latest_ms, remaining_ms)
      peers[live_count], entries[live_count] = worker, deadline_ms .. ':' .. worker
      if not first or worker < first[1] then first = {worker, remaining_ms} end
      if worker > node and (not successor or worker < successor[1]) then
        successor = {worker, remaining_ms}
      end
    end
  end
  successor = successor or first
  if live_count > 100 then peers = {unpack(peers, live_count - 99)} end
  if lease_ms > 0 then
    live_count = live_count + 1
    entries[live_count] = integer(now_ms + lease_ms) .. ':' .. node
  end
  return peers, live_count, has_lapsed or was_registered ~= (lease_ms > 0),
    successor and successor[2] or -1, table.concat(entries, ' '), latest_ms
end
