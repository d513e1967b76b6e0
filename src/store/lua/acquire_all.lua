-- Acquires several locks in one step: all of them if each is free and has no queue, and otherwise
-- none. A caller that wants to wait acquires them one after the other, in the order of shard and
-- name (acquire.lua).
--
-- Input:
--   KEYS     holders of each lock (ZSET), at most 32
--   ARGV[1]  mode: x, s or p
--   ARGV[2]  lease, ms
--   ARGV[3]  maximum of permits, for mode p
--   ARGV[4]  and the following: token for each lock, '<nonce>:<node>'
-- Output: for each lock the reply 'held' of acquire.lua; or {}, no lock was acquired.
-- Complexity: O(locks * log n).
-- All checks precede the first write, and no other command runs between them.
-- Idempotent: a lock held by its token counts as free, so a second call acquires the locks of the
-- first one again, with new, larger fences. If one of them has expired and is taken by another
-- holder, the others are left as they are: this call may be a late copy, and their leases may be in
-- use.
-- A grant that was not reported, or has no caller any more, is undone by release.lua with the same
-- token (grant_attempt.rs).
local mode, lease_ms, terms = ARGV[1], tonumber(ARGV[2]), ARGV[3] .. ' 0 0'
local lock_count, grants = #ARGV - 3, {}
for item = 1, lock_count do
  select_lock_by_key(KEYS[item])
  if redis.call('EXISTS', HOLDERS, WAITERS, JOBS) ~= 0 then
    expire_holders()
    if not redis.call('ZSCORE', HOLDERS, 'h' .. MODE_TAGS[mode] .. ARGV[item + 3]) then
      return grants
    end
  end
end
for item = 1, lock_count do
  select_lock_by_key(KEYS[item])
  grants[item] = acquire(ARGV[item + 3], mode, lease_ms, terms)
end
return grants
