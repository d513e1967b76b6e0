-- Extends the leases of runs.
--
-- KEYS zl   ARGV[1] lease, us   then the runs, at most 100
-- Returns '1' or '0' (not its owner's any more) for each
-- O(runs * log n). Idempotent; a dead caller's extension ends with the lease it gave.
local call, out, leases = redis.call, {}, {}
local runs = {unpack(ARGV, 2)}
for i, held in ipairs(call('ZMSCORE', KEYS[1], unpack(runs))) do
  out[i] = held and '1' or '0'
  if held then
    leases[#leases + 1] = now + tonumber(ARGV[1])
    leases[#leases + 1] = runs[i]
  end
end
if #leases > 0 then
  -- It needs no room, and is not to be refused for want of it: see renew.lua.
  call('ZREM', KEYS[1], '')
  call('ZADD', KEYS[1], unpack(leases))
end
return table.concat(out)
