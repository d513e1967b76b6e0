-- A page of the ended jobs of a shard, with what is told of each: never a body, never a response.
--
-- KEYS[1] index (done or dead)   KEYS[2] watch   ARGV[1] mark to begin at, 0 = the first   ARGV[2] most jobs, at
-- most 100   ARGV[3] what their keys begin with: the shard's tag and 'j:'
-- Returns {mark of the next page or '', {id, what job_view.lua says, 1 if the shard has a worker} per job}
-- O(log n + jobs). Reads only. Marks are when a job is forgotten, in us, each its own: a list goes on rightly while
-- jobs come and go. Those whose keys have gone are left out.
local from_us = math.max(tonumber(ARGV[1]), NOW_US + 1)
local page_size, has_worker, results = tonumber(ARGV[2]), shard_has_worker(KEYS[2]), {''}
local rows = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', from_us), '+inf', 'WITHSCORES', 'LIMIT', 0, page_size + 1)
for i = 1, #rows, 2 do
  if i > 2 * page_size then
    results[1] = string.format('%.0f', tonumber(rows[i + 1]))
  else
    local fields = read_job_view(ARGV[3] .. rows[i], rows[i])
    if fields then
      fields[17] = has_worker
      results[#results + 1] = {rows[i], fields}
    end
  end
end
return results
