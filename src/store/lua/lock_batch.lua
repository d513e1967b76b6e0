-- Runs lock calls that were sent together, each as a step of its own, in their order. The functions
-- of the steps are in acquire.lua, new_fence_and_queue_snapshot.lua, release.lua and
-- downgrade.lua, which precede this file. In front of them all, lock_batch_fast.lua has run the
-- first steps, as far as they need none of these functions, and left their replies in `results`.
--
-- Input, per call (at most 32):
--   KEYS  holders of the lock (ZSET), then for verb k the idempotency record (STRING); in a
--         cluster, the guard key of the shard comes last (`slot_guard_key` in key_names.rs)
--   ARGV  verb, letter of the mode, and terms
--         holder's member of h: 'h', the letter of the mode unless it is x, and the token
--         lease, ms; for the verbs a, k and d
-- Verbs and their terms:
--   a  acquire: ' <limit> <wait ms> <old sequence>'
--   k  acquire unless the idempotency record exists: like a
--   s  refresh the grant
--   r  release: ' <arrival of the next call's caller, us>', or none
--   d  downgrade
-- Output: list of the steps' replies, as described in their files.
--   {'error', text}  the step failed, without effect on the others
--   Steps of lock_batch_fast.lua have shorter replies; if it ran all, the output is one text.
-- Complexity: O(calls * log n).
-- Idempotent, since each step is.

-- By verb: function, number of keys, number of arguments.
local STEPS = {
  a = {acquire, 1, 3},
  k = {acquire, 2, 3},
  s = {refresh_grant, 1, 2},
  r = {release, 1, 2},
  d = {downgrade, 1, 3}
}
local SERVER_ERRORS = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
key_index, arg_index = 0, 0
for _ = 1, #results do
  local step = STEPS[string.sub(ARGV[arg_index + 1], 1, 1)]
  key_index, arg_index = key_index + step[2], arg_index + step[3]
end
local is_only_call = STEPS[string.sub(ARGV[1], 1, 1)][3] == #ARGV
while arg_index < #ARGV do
  local verb, mode, terms = string.match(ARGV[arg_index + 1], '^(%l)(%l)(.*)$')
  local token, step = string.match(ARGV[arg_index + 2], '%x+:%x+$'), STEPS[verb]
  select_lock_by_key(KEYS[key_index + 1])
  local record_key, lease_ms =
    step[2] == 2 and KEYS[key_index + 2] or nil, tonumber(ARGV[arg_index + 3])
  local succeeded, reply = pcall(step[1], token, mode, lease_ms, terms, record_key)
  holder_removed = false
  if not succeeded then
    local text = type(reply) == 'table' and reply.err or tostring(reply)
    -- An error of the server's state affects every call, so it is the reply to the batch. OOM is an
    -- exception, unless there is only one call: it does not affect calls that free memory.
    for _, code in ipairs(SERVER_ERRORS) do
      local start = string.find(text, code, 1, true)
      if start and (code ~= 'OOM' or is_only_call) then
        return redis.error_reply(string.sub(text, start))
      end
    end
    reply = {'error', text}
  end
  results[#results + 1] = reply
  key_index, arg_index = key_index + step[2], arg_index + step[3]
end
return results
