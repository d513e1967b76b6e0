-- Claims and settlements that went out together: each is one step of its own, in the order they came. What is in
-- it by itself is told in claim.lua and settle.lua, which stand before this.
--
-- KEYS one per step: h of its lock. The others carry the same tag and are named after it: at seven or more a step
-- they would be a third of its cost. In a cluster one that is never there stands behind them (keys.rs).
-- ARGV per step: 'c', job id, run token, lease ms, retention of dead jobs ms
--            or: 's', job id, run token, verb, ms, reason, response, token of the next run or '', lease ms,
--                retention ms
-- Returns a list of the steps' answers, or {'error', text}: a step that fails harms no other
-- At most 32 steps. O(steps * log n). Idempotent, since each of the steps is.
local SERVER = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
local out, a = {}, 0
for i = 1, #KEYS do
  if not ARGV[a + 1] then break end
  at(KEYS[i])
  local well, answer
  if ARGV[a + 1] == 'c' then
    well, answer = pcall(claim, ARGV[a + 2], ARGV[a + 3], tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]))
    a = a + 5
  else
    well, answer = pcall(settle, ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], tonumber(ARGV[a + 5]), ARGV[a + 6],
      ARGV[a + 7], ARGV[a + 8], tonumber(ARGV[a + 9]), tonumber(ARGV[a + 10]))
    a = a + 10
  end
  if not well then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- What is wrong with the server is wrong for all of them.
    for _, code in ipairs(SERVER) do
      local from = string.find(text, code, 1, true)
      if from then return redis.error_reply(string.sub(text, from)) end
    end
    answer = {'error', text}
  end
  out[i] = answer
end
tell_changed()
return out
