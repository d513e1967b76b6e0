-- Extends the leases of locks, and of the jobs that run under them.
--
-- Input, per item (at most 100):
--   KEYS[1]  holders of the lock (ZSET)
--   KEYS[2]  due index of the shard (ZSET); used if the item has a job
--   KEYS[3]  job (HASH); used if the item has a job
--   ARGV[1]  token, '<nonce>:<node>'
--   ARGV[2]  lease, ms
--   ARGV[3]  name of the lock
--   ARGV[4]  job id, or ''
--   ARGV[5]  letter of the mode in front of the token in h: '' exclusive, s, p
-- Output, per item: 1 extended; 0 no longer held by this token.
-- Complexity: O(items * log holders).
-- Idempotent. A lease is never shortened, since a delayed call may arrive after a longer extension,
-- on which the holder relies.
-- Caller gone: the lease ends after its last extension.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function integer(number) return string.format('%.0f', number) end
local results = {}
-- At `maxmemory`, Redis refuses a script if its first write may allocate. A renewal allocates
-- nothing, so it begins with this no-op, of which Redis knows that it cannot allocate.
redis.call('ZREM', KEYS[1], '')
for item = 1, #KEYS / 3 do
  local key, arg = (item - 1) * 3, (item - 1) * 5
  local member, lease_ms = 'h' .. ARGV[arg + 5] .. ARGV[arg + 1], tonumber(ARGV[arg + 2])
  local deadline_ms = tonumber(redis.call('ZSCORE', KEYS[key + 1], member) or '0')
  if deadline_ms > now_ms then
    if now_ms + lease_ms > deadline_ms then
      deadline_ms = now_ms + lease_ms
      redis.call('ZADD', KEYS[key + 1], integer(deadline_ms), member)
      -- An exclusive holder is alone in h, and h expires with it; lock_batch_fast.lua relies on
      -- that.
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
