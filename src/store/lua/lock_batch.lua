-- Calls about locks that went out together: each is one step of its own, in the order they came. What
-- is in it by itself is told in acquire.lua, refresh_grant.lua, release.lua and downgrade.lua, which stand before this; before
-- them all stands lock_batch_fast.lua, which has done those at the front that need none of them, and answered them.
--
-- KEYS per call: h of the lock; verb k has a second, the idempotency record. The others: see wait_queue.lua
-- ARGV per call: the verb (a acquire, k acquire unless known, s still, r release, d downgrade), the letter of the
-- mode, and numbers divided by blanks, in one text (of r: when the next step's caller came, or none); then 'h' .. the letter of the mode, if it is not x ..
-- '<nonce>:<node>', which is what the holder is called in h; then, for a, k and d, the lease, ms
-- Returns a list of what the steps return, or {'error', text}: a step that fails harms no other. For short
-- answers, and a reply that is no list, see lock_batch_fast.lua
-- At most 32 calls. O(calls * log n). Idempotent, since each of the calls is.
local STEPS = {
  a = {acquire, 1, 3}, k = {acquire, 2, 3}, s = {refresh_grant, 1, 2}, r = {release, 1, 2}, d = {downgrade, 1, 3}
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
  local record_key, lease_ms = step[2] == 2 and KEYS[key_index + 2] or nil, tonumber(ARGV[arg_index + 3])
  local succeeded, answer = pcall(step[1], token, mode, lease_ms, terms, record_key)
  holder_removed = false
  if not succeeded then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- What is wrong with the server is wrong for all of them. But that it has no room is not for those that make some.
    for _, code in ipairs(SERVER_ERRORS) do
      local start = string.find(text, code, 1, true)
      if start and (code ~= 'OOM' or is_only_call) then return redis.error_reply(string.sub(text, start)) end
    end
    answer = {'error', text}
  end
  results[#results + 1] = answer
  key_index, arg_index = key_index + step[2], arg_index + step[3]
end
return results
