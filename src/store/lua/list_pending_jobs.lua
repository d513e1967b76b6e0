-- A page of the jobs of a shard that wait or run, with what is told of each: never a body.
--
-- KEYS[1] due   KEYS[2] late   KEYS[3] watch   ARGV[1] the index to go on in: 'late', which comes first, or 'due'
-- ARGV[2] cursor of its scan, '0' = its beginning   ARGV[3], ARGV[4] behind which of what that cursor finds: the hash
-- of a name, and a sequence in its line, or 1   ARGV[5] most jobs, at most 100
-- Everything else that it names carries the tag of these: which lines there are turns out here.
-- Returns {{index, cursor, hash, sequence} to go on with, or {}; {id, what job_view.lua says, 1 if the shard has a worker}
-- per job}
-- O(names + jobs * log n). Names are those of a step of the scan of each index: some hundred, or a whole small one.
-- Reads only. Scores of `due` move all the time, so a page can't begin behind one. A scan finds whatever is there from
-- its beginning to its end, some of it twice; what one step of it finds is told in the order of hashes, which say
-- nothing of the names, so a page may end between any two jobs.
local shard_prefix, page_size, has_worker = string.sub(KEYS[1], 1, -4), tonumber(ARGV[5]), shard_has_worker(KEYS[3])
local index_name, scan_cursor, after_hash, after_sequence = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local results, visited_count = {{}}, 0

local function integer(number) return string.format('%.0f', number) end

-- What has no key is left out, and has been looked at.
local function add_job(id)
  visited_count = visited_count + 1
  local fields = read_job_view(shard_prefix .. 'j:' .. id, id)
  if fields and (fields[1] == 'queued' or fields[1] == 'running') then
    fields[17] = has_worker
    results[#results + 1] = {id, fields}
  end
end

-- Jobs of a line behind a sequence; the sequence of the last that was told, where there are more.
local function add_queue(lock_name, from_score)
  local rows = redis.call('ZRANGEBYSCORE', shard_prefix .. 'g:' .. lock_name, from_score, '+inf', 'WITHSCORES', 'LIMIT', 0, page_size - visited_count + 1)
  for i = 1, #rows, 2 do
    if visited_count == page_size then return tonumber(rows[i - 1]) end
    add_job(rows[i])
  end
end

-- One step of the scan. True if the page is full.
local function scan_step(index_key)
  local reply, entries = redis.call('ZSCAN', index_key, scan_cursor, 'COUNT', 100), {}
  for i = 1, #reply[2], 2 do
    local hash = string.sub(redis.sha1hex(reply[2][i]), 1, 16)
    if hash > after_hash or (hash == after_hash and (index_name == 'due' or after_sequence == 0)) then entries[#entries + 1] = {hash, reply[2][i]} end
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
      local from_score = entry[1] == after_hash and after_sequence > 0 and '(' .. integer(after_sequence) or '-inf'
      local last_sequence = add_queue(entry[2], from_score)
      if last_sequence then
        results[1] = {index_name, scan_cursor, entry[1], integer(last_sequence)}
        return true
      end
      -- No sequence is larger.
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
