-- Executes claims and settlements of jobs that were sent together, one after the other.
-- claim_lock_and_job.lua and settle_job_and_claim_next.lua, which are in front of this file, define
-- the items.
--
-- Input, per item (at most 32):
--   KEYS  holders of its lock (ZSET); in a cluster, the guard key of the shard comes last
--         (`slot_guard_key` in key_names.rs)
--   ARGV  of a claim: 'c', job id, run token, lease in ms, retention of dead jobs in ms
--         of a settlement: 's', job id, run token, verb, duration in ms, reason, response, token of
--         the next run or '', its lease in ms, retention in ms
-- Output, per item: the reply of claim_lock_and_job.lua or settle_job_and_claim_next.lua, or
-- {'error', text}.
-- Complexity: O(items * log n).
-- Idempotent, because each item is. An item that fails affects no other item.
-- The names of the other keys are built from the holders' key; they share its hash tag. Seven or
-- more declared keys per item would be a third of its cost.
local SERVER_ERRORS = {'READONLY', 'MASTERDOWN', 'LOADING', 'NOREPLICAS', 'MISCONF', 'OOM'}
local results, arg_index = {}, 0
for i = 1, #KEYS do
  if not ARGV[arg_index + 1] then break end
  select_lock_by_key(KEYS[i])
  local succeeded, answer
  if ARGV[arg_index + 1] == 'c' then
    succeeded, answer = pcall(
      claim_job,
      ARGV[arg_index + 2],
      ARGV[arg_index + 3],
      tonumber(ARGV[arg_index + 4]),
      tonumber(ARGV[arg_index + 5])
    )
    arg_index = arg_index + 5
  else
    succeeded, answer = pcall(
      settle_job,
      ARGV[arg_index + 2],
      ARGV[arg_index + 3],
      ARGV[arg_index + 4],
      tonumber(ARGV[arg_index + 5]),
      ARGV[arg_index + 6],
      ARGV[arg_index + 7],
      ARGV[arg_index + 8],
      tonumber(ARGV[arg_index + 9]),
      tonumber(ARGV[arg_index + 10])
    )
    arg_index = arg_index + 10
  end
  if not succeeded then
    local text = type(answer) == 'table' and answer.err or tostring(answer)
    -- An error of the server concerns every item, so it is the reply to the whole call.
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
