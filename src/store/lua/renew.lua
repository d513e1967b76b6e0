-- Extends leases: of locks, and of the jobs that run under them, in one step.
--
-- KEYS per item (3): h, due, j   (due, j are touched only if the item has a job)
-- ARGV per item (5): '<nonce>:<node>', lease ms, lock name, job id or '',
-- letter of the mode before the token in h ('' exclusive, s, p)
-- Returns one number an item: 1 extended, 0 not mine any more. At most 100 items a call.
-- O(items * log n). Idempotent; a dead caller's extension ends with the lease it gave. A lease is never shortened: a call
-- that was late may come behind a longer extension, in which its holder believes.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function integer(number) return string.format('%.0f', number) end
local results = {}
-- A server without room refuses a script whose first write may take some. To renew takes none, so one that takes none
-- comes first.
redis.call('ZREM', KEYS[1], '')
for item = 1, #KEYS / 3 do
  local key, arg = (item - 1) * 3, (item - 1) * 5
  local member, lease_ms = 'h' .. ARGV[arg + 5] .. ARGV[arg + 1], tonumber(ARGV[arg + 2])
  local deadline_ms = tonumber(redis.call('ZSCORE', KEYS[key + 1], member) or '0')
  if deadline_ms > now_ms then
    if now_ms + lease_ms > deadline_ms then
      deadline_ms = now_ms + lease_ms
      redis.call('ZADD', KEYS[key + 1], integer(deadline_ms), member)
      -- One in mode x is alone, and its key ends with it: lock_batch_fast.lua relies on that.
      if ARGV[arg + 5] == '' or redis.call('PTTL', KEYS[key + 1]) < lease_ms then
        redis.call('PEXPIRE', KEYS[key + 1], integer(lease_ms))
      end
    end
    local job_id = ARGV[arg + 4]
    if job_id ~= '' and redis.call('HGET', KEYS[key + 3], 'run') == ARGV[arg + 1] then
      redis.call('ZADD', KEYS[key + 2], integer(deadline_ms), ARGV[arg + 3])
    end
    results[item] = 1
  else
    results[item] = 0
  end
end
return results
