-- Extends the leases of task runs.
--
-- Input:
--   KEYS[1]     running tasks of the queue (ZSET)
--   ARGV[1]     lease, us
--   ARGV[2...]  runs, as members of KEYS[1]; at most 100
-- Output: a text with one character per run: '1' extended, '0' no longer its owner's.
-- Complexity: O(runs * log n).
-- Idempotent.
-- Caller gone: the extension ends with the lease.
local call, results, lease_args = redis.call, {}, {}
local runs = {unpack(ARGV, 2)}
for i, lease_end in ipairs(call('ZMSCORE', KEYS[1], unpack(runs))) do
  results[i] = lease_end and '1' or '0'
  if lease_end then
    lease_args[#lease_args + 1] = now_us + tonumber(ARGV[1])
    lease_args[#lease_args + 1] = runs[i]
  end
end
if #lease_args > 0 then
  -- A renewal needs no memory, so it must not be refused at `maxmemory`: see renew.lua.
  call('ZREM', KEYS[1], '')
  call('ZADD', KEYS[1], unpack(lease_args))
end
return table.concat(results)
