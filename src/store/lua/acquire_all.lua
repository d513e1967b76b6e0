-- Several locks in one step: all of them, if each is free and nobody stands in its line, and else none. Who wants
-- more than that waits for one after the other, in the order of shard and name, by acquire.lua.
--
-- KEYS   h of each lock (wait_queue.lua)
-- ARGV   the letter of the mode; the lease, ms; most at once, for p; then for each lock '<nonce>:<node>'
-- Returns what acquire.lua returns for each, all of them 'held', or nothing of any: {}
-- At most 32 locks. O(locks * log n). All looks come before the first write, and nothing that they have seen
-- can change in between. Idempotent: what a nonce has from a call whose answer was lost is as good as free to it; so a
-- second call takes what the first one took, with new and larger fences. Where some of that vanished and somebody else came,
-- the rest is left as it is: this may be a copy that comes late, and by now somebody may hold that in good faith. What nobody
-- was told of, and where the caller has gone, release.lua undoes, with the same nonces (attempt.rs).
local mode, lease_ms, terms = ARGV[1], tonumber(ARGV[2]), ARGV[3] .. ' 0 0'
local lock_count, grants = #ARGV - 3, {}
for item = 1, lock_count do
  select_lock_by_key(KEYS[item])
  if redis.call('EXISTS', HOLDERS, WAITERS, JOBS) ~= 0 then
    expire_holders()
    if not redis.call('ZSCORE', HOLDERS, 'h' .. MODE_TAGS[mode] .. ARGV[item + 3]) then return grants end
  end
end
for item = 1, lock_count do
  select_lock_by_key(KEYS[item])
  grants[item] = acquire(ARGV[item + 3], mode, lease_ms, terms)
end
return grants
