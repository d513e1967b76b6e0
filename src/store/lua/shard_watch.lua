-- In a cluster, the part of heartbeat.lua that is about one shard: whose it is, and whether it has anything to do.
--
-- KEYS[1] watch   KEYS[2] due   KEYS[3] late   KEYS[4] exp   ARGV[1] node   ARGV[2] verb   ARGV[3] ms
-- Verbs: look; keep (ms: from now on it is this node's, if it is no other's); leave (ms: it was this node's, and is
-- nobody's until others have had the time to come for it; 0: it is free at once); free (what has lapsed goes)
-- Returns {'mine', 'another', 'lapsed' (this node's, until it ended), 'free' or '' (there is none), 1 if it has
-- something that is due, late or with a deadline}: whose it is now
-- O(1). Idempotent: whoever was faster has it, and a caller that has gone leaves a watch that ends.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function deadline_prefix(ms) return string.format('%.0f', now_ms + ms) .. ':' end
local node, verb, duration_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local value = redis.call('GET', KEYS[1])
local deadline_ms, owner = string.match(value or '', '^(%d+):(%x+)$')
local is_live = deadline_ms and tonumber(deadline_ms) > now_ms
local status = is_live and (owner == node and 'mine' or 'another') or owner == node and 'lapsed' or value and 'free' or ''
if verb == 'keep' and status ~= 'another' then
  -- Also without room: see heartbeat.lua.
  redis.call('PERSIST', KEYS[1])
  redis.call('SET', KEYS[1], deadline_prefix(duration_ms) .. node)
  status = 'mine'
elseif verb == 'leave' and status == 'mine' then
  redis.call('PERSIST', KEYS[1])
  if duration_ms > 0 then redis.call('SET', KEYS[1], deadline_prefix(duration_ms)) else redis.call('DEL', KEYS[1]) end
  status = 'free'
elseif verb == 'free' and not is_live and value then
  redis.call('DEL', KEYS[1])
  status = ''
end
return {status, redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 and 1 or 0}
