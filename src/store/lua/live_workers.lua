-- Stands before heartbeat.lua and cluster_heartbeat.lua: who lives of the workers.
--
-- ARGV[1] node   ARGV[2] lease, ms; 0 = it leaves
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function integer(number) return string.format('%.0f', number) end
local node, lease_ms = ARGV[1], tonumber(ARGV[2])

-- The others of those who live, at most 100, the latest of them; how many live, with this one; whether this one is
-- new, or has left, or another one has died, which only the first to see it is told; ms until the lease ends of the one that stands next to it in the order of their names, or -1; and
-- what the key `workers` has to say from now on. `text` is what it said: of each '<deadline, ms>:<node> '.
local function update_registry(registry)
  local others, live_count, is_known, entries, latest_ms = {}, 0, false, {}, 0
  local successor, first, has_lapsed
  for deadline_ms, worker in string.gmatch(registry, '(%d+):(%x+)') do
    local remaining_ms = tonumber(deadline_ms) - now_ms
    if remaining_ms > 0 and worker == node then
      is_known = true
    elseif remaining_ms <= 0 and worker ~= node then
      has_lapsed = true
    elseif remaining_ms > 0 then
      live_count, latest_ms = live_count + 1, math.max(latest_ms, remaining_ms)
      others[live_count], entries[live_count] = worker, deadline_ms .. ':' .. worker
      if not first or worker < first[1] then first = {worker, remaining_ms} end
      if worker > node and (not successor or worker < successor[1]) then successor = {worker, remaining_ms} end
    end
  end
  successor = successor or first
  if live_count > 100 then others = {unpack(others, live_count - 99)} end
  if lease_ms > 0 then
    live_count = live_count + 1
    entries[live_count] = integer(now_ms + lease_ms) .. ':' .. node
  end
  return others, live_count, has_lapsed or is_known ~= (lease_ms > 0), successor and successor[2] or -1, table.concat(entries, ' '), latest_ms
end
