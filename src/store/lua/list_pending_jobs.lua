-- Returns a page of the waiting and running jobs of a shard, without requests.
--
-- The delayed jobs come first, then the jobs of the queues. The position of a page is a cursor of
-- ZSCAN over the index, and a place among the entries of that scan step.
--
-- Input:
--   KEYS[1]  index of locks with jobs, `due` (ZSET)
--   KEYS[2]  index of delayed jobs, `late` (ZSET)
--   KEYS[3]  watch of the shard (STRING)
--   ARGV[1]  index to continue with: 'late' (the first) or 'due'
--   ARGV[2]  its scan cursor; '0' = the beginning
--   ARGV[3]  hash of the last listed job id or lock name, 16 hex digits
--   ARGV[4]  due: last listed sequence in the queue of that lock; late: 1; either: 0 = none yet
--   ARGV[5]  most jobs, at most 100
-- The script finds the queues in the index, so their keys cannot be declared. They carry the hash
-- tag of the declared ones.
-- Output, an array:
--   {index, scan cursor, hash, sequence} of the next page, or {}
--   then, per job: {id, {the view (see job_view.lua), 1 if the shard has a worker or 0}}
-- Complexity: O(names + jobs * log n); the names are those of one scan step of each index: some
-- hundred, or a whole small index.
-- It only reads.
-- The scores of `due` change all the time, so a page cannot begin behind a score. A scan finds each
-- entry that is there from its beginning to its end, some of them twice. The entries of one scan
-- step are listed in the order of their hashes, which do not disclose the names, so a page may end
-- between any two jobs.
local shard_prefix, page_size, has_worker =
  string.sub(KEYS[1], 1, -4), tonumber(ARGV[5]), shard_has_worker(KEYS[3])
local index_name, scan_cursor, after_hash, after_sequence =
  ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local results, visited_count = {{}}, 0

local function integer(number) return string.format('%.0f', number) end

-- Lists a job, unless its record has vanished. Either way it counts against the page size.
local function add_job(id)
  visited_count = visited_count + 1
  local fields = read_job_view(shard_prefix .. 'j:' .. id, id)
  if fields and (fields[1] == 'queued' or fields[1] == 'running') then
    fields[18] = has_worker
    results[#results + 1] = {id, fields}
  end
end

-- Lists the jobs of a queue from a score on. If the page is full before the end of the queue,
-- returns the last listed sequence.
local function add_queue(lock_name, from_score)
  local rows = redis.call('ZRANGEBYSCORE', shard_prefix .. 'g:' .. lock_name, from_score, '+inf',
    'WITHSCORES', 'LIMIT', 0, page_size - visited_count + 1)
  for i = 1, #rows, 2 do
    if visited_count == page_size then return tonumber(rows[i - 1]) end
    add_job(rows[i])
  end
end

-- Lists the entries of one scan step. Returns true if the page is full.
local function scan_step(index_key)
  local reply, entries = redis.call('ZSCAN', index_key, scan_cursor, 'COUNT', 100), {}
  for i = 1, #reply[2], 2 do
    local hash = string.sub(redis.sha1hex(reply[2][i]), 1, 16)
    if hash > after_hash
      or (hash == after_hash and (index_name == 'due' or after_sequence == 0)) then
      entries[#entries + 1] = {hash, reply[2][i]}
    end
  end
  table.sort(entries, function(a, b) return a[1] < b[1] end)
  for n, entry in ipairs(entries) do
    if visited_count == page_size then
      results[1] = {index_name, scan_cursor, after_hash, integer(after_sequence)}
      return true
    end
    if index_name == 'late' then
      add_job(entry[2])
      after_hash, after_sequence = entry[1], 1
    else
      local from_score = entry[1] == after_hash and after_sequence > 0
        and '(' .. integer(after_sequence) or '-inf'
      local last_sequence = add_queue(entry[2], from_score)
      if last_sequence then
        results[1] = {index_name, scan_cursor, entry[1], integer(last_sequence)}
        return true
      end
      -- 2^53, larger than any sequence: this queue is complete.
      after_hash, after_sequence = entry[1], 9007199254740992
    end
  end
  scan_cursor, after_hash, after_sequence = reply[1], '0000000000000000', 0
end

if index_name == 'late' then
  if scan_step(KEYS[2]) then return results end
  if scan_cursor == '0' then index_name = 'due' end
end
if index_name == 'due' then
  if scan_step(KEYS[1]) then return results end
  if scan_cursor == '0' then return results end
end
results[1] = {index_name, scan_cursor, after_hash, integer(after_sequence)}
return results
