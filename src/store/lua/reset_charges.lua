-- Deletes quota counters with their penalties.
--
-- Input, per counter (at most 100):
--   KEYS[1]  counter (STRING)
--   KEYS[2]  its penalty (STRING): number of refusals, or 'blocked', with ms if by an operator
-- Output: number of deleted keys.
-- Complexity: O(keys).
-- Not repeated after an uncertain outcome: a late copy would delete charges made since.
return redis.call('UNLINK', unpack(KEYS))
