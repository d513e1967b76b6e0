-- Divides the shards among live workers by short leases.
--
-- KEYS watch of one shard each, at most 64   ARGV[1] node   ARGV[2] lease, ms   ARGV[3] most shards to
-- own after this call   ARGV[4] channel prefix
-- Returns per shard 1 = watched by this node now, 0 = not
-- O(shards). Own leases are extended up to the most, the rest given up; free ones are taken while
-- there is room. What was given up is told to all workers. Idempotent; a dead worker's shards are free
-- when its lease ends.
local owned, most, out, given_up = 0, tonumber(ARGV[3]), {}, 0
for i, key in ipairs(KEYS) do
  out[i] = 0
  if redis.call('GET', key) == ARGV[1] then
    if owned < most then
      redis.call('PEXPIRE', key, ARGV[2])
      owned = owned + 1
      out[i] = 1
    else
      redis.call('DEL', key)
      given_up = given_up + 1
    end
  end
end
for i, key in ipairs(KEYS) do
  if owned >= most then break end
  -- A watch without an end would keep everybody from this shard for ever.
  if redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ARGV[2]) end
  if out[i] == 0 and redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then
    owned = owned + 1
    out[i] = 1
  end
end
if given_up > 0 then redis.call('PUBLISH', ARGV[4] .. 'e', 'workers') end
return out
