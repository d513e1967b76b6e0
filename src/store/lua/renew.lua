-- Extends leases: of locks, and of the jobs that run under them, in one step.
--
-- KEYS per item (3): h, due, j   (due, j are touched only if the item has a job)
-- ARGV per item (5): '<nonce>:<node>', lease ms, lock name, job id or '',
-- letter of the mode before the token in h ('' exclusive, s, p)
-- Returns one number an item: 1 extended, 0 not mine any more. At most 100 items a call.
-- O(items * log n). Idempotent; a dead caller's extension ends with the lease it gave. A lease is never shortened: a call
-- that was late may come behind a longer extension, in which its holder believes.
local time = redis.call('TIME')
local now = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function int(n) return string.format('%.0f', n) end
local out = {}
-- A server without room refuses a script whose first write may take some. To renew takes none, so one that takes none
-- comes first.
redis.call('ZREM', KEYS[1], '')
for i = 1, #KEYS / 3 do
  local k, a = (i - 1) * 3, (i - 1) * 5
  local member, lease = 'h' .. ARGV[a + 5] .. ARGV[a + 1], tonumber(ARGV[a + 2])
  local deadline = tonumber(redis.call('ZSCORE', KEYS[k + 1], member) or '0')
  if deadline > now then
    if now + lease > deadline then
      deadline = now + lease
      redis.call('ZADD', KEYS[k + 1], int(deadline), member)
      -- One in mode x is alone, and its key ends with it: usual.lua relies on that.
      if ARGV[a + 5] == '' or redis.call('PTTL', KEYS[k + 1]) < lease then
        redis.call('PEXPIRE', KEYS[k + 1], int(lease))
      end
    end
    local job = ARGV[a + 4]
    if job ~= '' and redis.call('HGET', KEYS[k + 3], 'run') == ARGV[a + 1] then
      redis.call('ZADD', KEYS[k + 2], int(deadline), ARGV[a + 3])
    end
    out[i] = 1
  else
    out[i] = 0
  end
end
return out
