-- Claims and settlements that went out together: each is one step of its own, in the order they came. What is in
-- it by itself is told in claim_job.lua and settle_job.lua, which stand before this.
--
-- KEYS one per step: h of its lock. The others carry the same tag and are named after it: at seven or more a step
-- they would be a third of its cost. In a cluster one that is never there stands behind them (keys.rs).
-- ARGV per step: 'c', job id, run token, lease ms, retention of dead jobs ms
--            or: 's', job id, run token, verb, ms, reason, response, token of the next run or '', lease ms,
--                retention ms
-- Returns a list of the steps' answers, or {'error', text}: a step that fails harms no other
-- At most 32 steps. O(steps * log n). Idempotent, since each of the steps is.
local SERVER_ERRORS = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
local results, arg_index = {}, 0
for i = 1, #KEYS do
  if not ARGV[arg_index + 1] then break end
  select_lock_by_key(KEYS[i])
  local succeeded, answer
  if ARGV[arg_index + 1] == 'c' then
    succeeded, answer = pcall(claim_job, ARGV[arg_index + 2], ARGV[arg_index + 3], tonumber(ARGV[arg_index + 4]), tonumber(ARGV[arg_index + 5]))
    arg_index = arg_index + 5
  else
    succeeded, answer = pcall(settle_job, ARGV[arg_index + 2], ARGV[arg_index + 3], ARGV[arg_index + 4], tonumber(ARGV[arg_index + 5]), ARGV[arg_index + 6],
      ARGV[arg_index + 7], ARGV[arg_index + 8], tonumber(ARGV[arg_index + 9]), tonumber(ARGV[arg_index + 10]))
    arg_index = arg_index + 10
  end
  if not succeeded then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- What is wrong with the server is wrong for all of them.
    for _, code in ipairs(SERVER_ERRORS) do
      local start = string.find(text, code, 1, true)
      if start then return redis.error_reply(string.sub(text, start)) end
    end
    answer = {'error', text}
  end
  results[i] = answer
end
publish_changed_jobs()
return results
