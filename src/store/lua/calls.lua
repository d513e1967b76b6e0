-- Calls about locks that went out together: each is one step of its own, in the order they came. What
-- is in it by itself is told in acquire.lua, release.lua and downgrade.lua, which stand before this; before
-- them all stands usual.lua, which has done those at the front that need none of them (k, a: how far).
--
-- KEYS per call: the seven of line.lua; 'known' has an eighth, the idempotency record
-- ARGV[1..3] as line.lua (the name is that of the first)   then per call: verb, name, arguments
-- Returns per call what its step returns (in short, where usual.lua says so), or {'error', text}: a step
-- that fails harms no other
-- At most 32 calls. O(calls * log n). Idempotent, since each of the calls is.
local STEPS = {
  acquire = {acquire, 7, 9}, known = {acquire, 8, 9}, release = {release, 7, 4}, downgrade = {downgrade, 7, 5},
}
local SERVER = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
while a < #ARGV do
  local step = STEPS[ARGV[a + 1]]
  at(k, ARGV[a + 2])
  local well, answer = pcall(step[1], a + 2, step[2] == 8 and KEYS[k + 8] or nil)
  if not well then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- What is wrong with the server is wrong for all of them.
    for _, code in ipairs(SERVER) do
      local from = string.find(text, code, 1, true)
      if from then return redis.error_reply(string.sub(text, from)) end
    end
    answer = {'error', text}
  end
  out[#out + 1] = answer
  k, a = k + step[2], a + step[3]
end
return out
