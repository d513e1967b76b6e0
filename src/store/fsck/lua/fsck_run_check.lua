-- Checks a part of a shard, and repairs its faults if requested.
--
-- Last part of the script `fsck`, after the files with the checks: fsck_jobs.lua, fsck_indexes.lua
-- and fsck_check_repair_keys.lua. It makes the call of one check.
--
-- Input:
--   KEYS[1]    counts of the shard, `f` (HASH); all other keys have its prefix
--   ARGV[1]    check
--   ARGV[2]    '1' repair, '0' only report
--   ARGV[3]    cursor, depending on the check
--   ARGV[4..]  names, depending on the check
-- Checks:
--   'due', 'delayed', 'deadlines', 'done', 'dead': one page of this index
--     ARGV[3] is '0' for the first page
--   'wait_queues': locks with their jobs
--     ARGV[3] is the sequence after which the jobs of the first lock are checked, or '-inf'
--     ARGV[4..] are names of locks
--   'totals': counts of pending jobs
--     ARGV[3] is 'all' or 'some', and ARGV[4..] are names of locks, as fsck_indexes.lua describes
--   'keys': keys of the shard
--     ARGV[3] is not used
--     ARGV[4..] are full names of keys
-- Output: one of
--   {cursor of the next call or '', {names}, {kind, name, detail, '1' if repaired} per finding}
--   with repair, the error with which the server refuses every write, such as READONLY or OOM
-- Complexity: O(names + jobs * log n); a call checks at most 100 names and 100 jobs, or one page of
-- ZSCAN.
-- Idempotent: a repeated call finds the rest.
-- Caller gone: each finding is repaired in the call that finds it, so nothing is left half done.

select_lock(FSCK_SHARD_PREFIX, '')
local next_cursor, names = checks[ARGV[1]](unpack(ARGV, 3))
publish_changed_jobs()
return server_error or {next_cursor, names or {}, unpack(findings)}
