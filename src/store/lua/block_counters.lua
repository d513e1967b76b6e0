-- Blocks the counters of a subject for a time that an operator has chosen, or ends that.
--
-- Input, per counter (at most 100):
--   KEYS[1]  its penalty (STRING)
-- and for all:
--   ARGV[1]  duration of the block, ms; 0 ends blocks and forgets refusals
-- Output: number of counters.
-- Complexity: O(keys).
-- The keys expire with the block. Only charges with a penalty read them.
-- Not repeated after an uncertain outcome: a late copy would undo a later call.
for _, key in ipairs(KEYS) do
  if ARGV[1] == '0' then
    redis.call('DEL', key)
  elseif string.sub(key, -7) ~= '}:never' then
    redis.call('SET', key, 'blocked ' .. ARGV[1], 'PX', ARGV[1])
  end
end
return #KEYS
