-- A page of the ended jobs of a shard, with what is told of each: never a body, never a response.
--
-- KEYS[1] index (done or dead)   KEYS[2] watch   ARGV[1] mark to begin at, 0 = the first   ARGV[2] most jobs, at
-- most 100   ARGV[3] what their keys begin with: the shard's tag and 'j:'
-- Returns {mark of the next page or '', {id, what view.lua says, 1 if the shard has a worker} per job}
-- O(log n + jobs). Reads only. Marks are when a job is forgotten, in us, each its own: a list goes on rightly while
-- jobs come and go. Those whose keys have gone are left out.
local from = math.max(tonumber(ARGV[1]), NOW_US + 1)
local most, worker, out = tonumber(ARGV[2]), watched(KEYS[2]), {''}
local rows = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', from), '+inf', 'WITHSCORES', 'LIMIT', 0, most + 1)
for i = 1, #rows, 2 do
  if i > 2 * most then
    out[1] = string.format('%.0f', tonumber(rows[i + 1]))
  else
    local v = view(ARGV[3] .. rows[i], rows[i])
    if v then
      v[17] = worker
      out[#out + 1] = {rows[i], v}
    end
  end
end
return out
