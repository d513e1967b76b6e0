-- Several locks in one step: all of them, if each is free and nobody stands in its line, and else none. Who wants
-- more than that waits for one after the other, in the order of shard and name, by acquire.lua.
--
-- KEYS   h of each lock (line.lua)
-- ARGV   the letter of the mode; the lease, ms; most at once, for p; then for each lock '<nonce>:<node>'
-- Returns what acquire.lua returns for each, all of them 'held', or nothing of any: {}
-- At most 32 locks. O(locks * log n). All looks come before the first write, and nothing that they have seen
-- can change in between. Idempotent: what a nonce has from a call whose answer was lost is as good as free to it; so a
-- second call takes what the first one took, with new and larger fences. Where some of that vanished and somebody else came,
-- the rest is left as it is: this may be a copy that comes late, and by now somebody may hold that in good faith. What nobody
-- was told of, and where the caller has gone, release.lua undoes, with the same nonces (attempt.rs).
local mode, lease, numbers = ARGV[1], tonumber(ARGV[2]), ARGV[3] .. ' 0 0'
local count, held = #ARGV - 3, {}
for n = 1, count do
  at(KEYS[n])
  if redis.call('EXISTS', H, Q, G) ~= 0 then
    held_until()
    if not redis.call('ZSCORE', H, 'h' .. TAG[mode] .. ARGV[n + 3]) then return held end
  end
end
for n = 1, count do
  at(KEYS[n])
  held[n] = acquire(ARGV[n + 3], mode, lease, numbers)
end
return held
