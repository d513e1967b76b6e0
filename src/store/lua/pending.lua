-- A page of the jobs of a shard that wait or run, with what is told of each: never a body.
--
-- KEYS[1] due   KEYS[2] late   KEYS[3] watch   ARGV[1] the index to go on in: 'late', which comes first, or 'due'
-- ARGV[2] cursor of its scan, '0' = its beginning   ARGV[3], ARGV[4] behind which of what that cursor finds: the hash
-- of a name, and a sequence in its line, or 1   ARGV[5] most jobs, at most 100
-- Everything else that it names carries the tag of these: which lines there are turns out here.
-- Returns {{index, cursor, hash, sequence} to go on with, or {}; {id, what view.lua says, 1 if the shard has a worker}
-- per job}
-- O(names + jobs * log n). Names are those of a step of the scan of each index: some hundred, or a whole small one.
-- Reads only. Scores of `due` move all the time, so a page can't begin behind one. A scan finds whatever is there from
-- its beginning to its end, some of it twice; what one step of it finds is told in the order of hashes, which say
-- nothing of the names, so a page may end between any two jobs.
local tag, most, worker = string.sub(KEYS[1], 1, -4), tonumber(ARGV[5]), watched(KEYS[3])
local which, scan, after, behind = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local out, looked = {{}}, 0

local function int(n) return string.format('%.0f', n) end

-- What has no key is left out, and has been looked at.
local function tell(id)
  looked = looked + 1
  local v = view(tag .. 'j:' .. id, id)
  if v and (v[1] == 'queued' or v[1] == 'running') then
    v[17] = worker
    out[#out + 1] = {id, v}
  end
end

-- Jobs of a line behind a sequence; the sequence of the last that was told, where there are more.
local function tell_line(name, from)
  local rows = redis.call('ZRANGEBYSCORE', tag .. 'g:' .. name, from, '+inf', 'WITHSCORES', 'LIMIT', 0, most - looked + 1)
  for i = 1, #rows, 2 do
    if looked == most then return tonumber(rows[i - 1]) end
    tell(rows[i])
  end
end

-- One step of the scan. True if the page is full.
local function step(index)
  local all, names = redis.call('ZSCAN', index, scan, 'COUNT', 100), {}
  for i = 1, #all[2], 2 do
    local hash = string.sub(redis.sha1hex(all[2][i]), 1, 16)
    if hash > after or (hash == after and (which == 'due' or behind == 0)) then names[#names + 1] = {hash, all[2][i]} end
  end
  table.sort(names, function(a, b) return a[1] < b[1] end)
  for n, name in ipairs(names) do
    if looked == most then
      out[1] = {which, scan, after, int(behind)}
      return true
    end
    if which == 'late' then
      tell(name[2])
      after, behind = name[1], 1
    else
      local from = name[1] == after and behind > 0 and '(' .. int(behind) or '-inf'
      local left = tell_line(name[2], from)
      if left then
        out[1] = {which, scan, name[1], int(left)}
        return true
      end
      -- No sequence is larger.
      after, behind = name[1], 9007199254740992
    end
  end
  scan, after, behind = all[1], '0000000000000000', 0
end

if which == 'late' then
  if step(KEYS[2]) then return out end
  if scan == '0' then which = 'due' end
end
if which == 'due' then
  if step(KEYS[1]) then return out end
  if scan == '0' then return out end
end
out[1] = {which, scan, after, int(behind)}
return out
