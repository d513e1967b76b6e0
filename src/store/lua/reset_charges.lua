-- Forgets what was spent of quotas, and their refusals.
--
-- KEYS what they are kept in
-- Returns how many there were
-- O(keys), at most 200: two for each counter. Never sent again by itself: a copy that came late would forget what was spent since.
return redis.call('UNLINK', unpack(KEYS))
