-- Returns a page of the ended jobs of a shard, without requests and responses.
--
-- Input:
--   KEYS[1]  index of done or of dead jobs (ZSET)
--   KEYS[2]  watch of the shard (STRING)
--   ARGV[1]  mark at which the page begins; 0 = the first job
--   ARGV[2]  most jobs, at most 100
--   ARGV[3]  prefix of the shard's job records, '...:j:'
-- Output, an array:
--   mark of the next page, or ''
--   then, per job: {id, {the view (see job_view.lua), 1 if the shard has a worker or 0}}
-- Complexity: O(log n + jobs).
-- It only reads.
-- A mark is the end of a job's retention, in us. It is unique in its index, so a page continues
-- correctly although jobs come and go.
-- A job with a vanished record is left out.
local from_us = math.max(tonumber(ARGV[1]), NOW_US + 1)
local page_size, has_worker, results = tonumber(ARGV[2]), shard_has_worker(KEYS[2]), {''}
local rows = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', from_us), '+inf',
  'WITHSCORES', 'LIMIT', 0, page_size + 1)
for i = 1, #rows, 2 do
  if i > 2 * page_size then
    results[1] = string.format('%.0f', tonumber(rows[i + 1]))
  else
    local fields = read_job_view(ARGV[3] .. rows[i], rows[i])
    if fields then
      fields[18] = has_worker
      results[#results + 1] = {rows[i], fields}
    end
  end
end
return results
