-- Heartbeat of a worker in a cluster, part of one shard: reads or changes its watch, and reports
-- whether it has work.
--
-- Input:
--   KEYS[1]  watch (STRING)
--   KEYS[2]  due (ZSET)
--   KEYS[3]  late (ZSET)
--   KEYS[4]  exp (ZSET)
--   ARGV[1]  node
--   ARGV[2]  verb
--   ARGV[3]  time, ms
-- Verbs:
--   peek    changes nothing
--   assign  gives the watch to this node for the time, unless another node has it
--   vacate  gives up the watch of this node: it is vacant for the time, in which other workers can
--           take it; 0 deletes it
--   clear   deletes an expired or vacant watch
-- Output: {owner, work}
--   owner  after the call: 'this_node'; 'other_node'; 'lapsed', this node's but expired;
--          'released', vacant or another node's but expired; '', there is no watch
--   work   1 if the shard has a due, a delayed or an expiring job
-- Complexity: O(1).
-- Idempotent: the first node to ask for a watch gets it.
-- Caller gone: its watch expires.
local time = redis.call('TIME')
local now_ms = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function deadline_prefix(ms) return string.format('%.0f', now_ms + ms) .. ':' end
local node, verb, duration_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local value = redis.call('GET', KEYS[1])
local deadline_ms, owner = string.match(value or '', '^(%d+):(%x+)$')
local is_live = deadline_ms and tonumber(deadline_ms) > now_ms
local status = is_live and (owner == node and 'this_node' or 'other_node')
  or owner == node and 'lapsed'
  or value and 'released'
  or ''
if verb == 'assign' and status ~= 'other_node' then
  -- Works at `maxmemory` too: see heartbeat_and_shard_assignment.lua.
  redis.call('PERSIST', KEYS[1])
  redis.call('SET', KEYS[1], deadline_prefix(duration_ms) .. node)
  status = 'this_node'
elseif verb == 'vacate' and status == 'this_node' then
  redis.call('PERSIST', KEYS[1])
  if duration_ms > 0 then
    redis.call('SET', KEYS[1], deadline_prefix(duration_ms))
  else
    redis.call('DEL', KEYS[1])
  end
  status = 'released'
elseif verb == 'clear' and not is_live and value then
  redis.call('DEL', KEYS[1])
  status = ''
end
return {status, redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) > 0 and 1 or 0}
