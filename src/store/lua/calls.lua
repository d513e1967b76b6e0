-- Calls about locks that went out together: each is one step of its own, in the order they came. What
-- is in it by itself is told in acquire.lua, still.lua, release.lua and downgrade.lua, which stand before this; before
-- them all stands usual.lua, which has done those at the front that need none of them, and answered them.
--
-- KEYS per call: h of the lock; verb k has a second, the idempotency record. The others: see line.lua
-- ARGV per call: the verb (a acquire, k acquire unless known, s still, r release, d downgrade), the letter of the
-- mode, and numbers divided by blanks, in one text (of r: when the next step's caller came, or none); then 'h' .. the letter of the mode, if it is not x ..
-- '<nonce>:<node>', which is what the holder is called in h; then, for a, k and d, the lease, ms
-- Returns a list of what the steps return, or {'error', text}: a step that fails harms no other. For short
-- answers, and a reply that is no list, see usual.lua
-- At most 32 calls. O(calls * log n). Idempotent, since each of the calls is.
local STEPS = {
  a = {acquire, 1, 3}, k = {acquire, 2, 3}, s = {still, 1, 2}, r = {release, 1, 2}, d = {downgrade, 1, 3}
}
local SERVER = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
k, a = 0, 0
for _ = 1, #out do
  local step = STEPS[string.sub(ARGV[a + 1], 1, 1)]
  k, a = k + step[2], a + step[3]
end
local alone = STEPS[string.sub(ARGV[1], 1, 1)][3] == #ARGV
while a < #ARGV do
  local verb, mode, numbers = string.match(ARGV[a + 1], '^(%l)(%l)(.*)$')
  local me, step = string.match(ARGV[a + 2], '%x+:%x+$'), STEPS[verb]
  at(KEYS[k + 1])
  local record, lease = step[2] == 2 and KEYS[k + 2] or nil, tonumber(ARGV[a + 3])
  local well, answer = pcall(step[1], me, mode, lease, numbers, record)
  taken = false
  if not well then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- What is wrong with the server is wrong for all of them. But that it has no room is not for those that make some.
    for _, code in ipairs(SERVER) do
      local from = string.find(text, code, 1, true)
      if from and (code ~= 'OOM' or alone) then return redis.error_reply(string.sub(text, from)) end
    end
    answer = {'error', text}
  end
  out[#out + 1] = answer
  k, a = k + step[2], a + step[3]
end
return out
