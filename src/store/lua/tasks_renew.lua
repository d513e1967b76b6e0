-- Extends the leases of runs.
--
-- KEYS zl   ARGV[1] lease, us   then the runs, at most 100
-- Returns '1' or '0' (not its owner's any more) for each
-- O(runs * log n). Idempotent; a dead caller's extension ends with the lease it gave.
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
  -- It needs no room, and is not to be refused for want of it: see renew.lua.
  call('ZREM', KEYS[1], '')
  call('ZADD', KEYS[1], unpack(lease_args))
end
return table.concat(results)
