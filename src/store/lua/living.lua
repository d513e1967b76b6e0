-- Stands before beat.lua and workers.lua: who lives of the workers.
--
-- ARGV[1] node   ARGV[2] lease, ms; 0 = it leaves
local time = redis.call('TIME')
local now = math.floor((tonumber(time[1]) * 1000000 + tonumber(time[2])) / 1000)
local function int(n) return string.format('%.0f', n) end
local node, lease = ARGV[1], tonumber(ARGV[2])

-- The others of those who live, at most 100, the latest of them; how many live, with this one; whether this one is
-- new, or has left, or another one has died, which only the first to see it is told; ms until the lease ends of the one that stands next to it in the order of their names, or -1; and
-- what the key `workers` has to say from now on. `text` is what it said: of each '<deadline, ms>:<node> '.
local function present(text)
  local others, living, known, kept, last = {}, 0, false, {}, 0
  local next, first, gone
  for til, who in string.gmatch(text, '(%d+):(%x+)') do
    local left = tonumber(til) - now
    if left > 0 and who == node then
      known = true
    elseif left <= 0 and who ~= node then
      gone = true
    elseif left > 0 then
      living, last = living + 1, math.max(last, left)
      others[living], kept[living] = who, til .. ':' .. who
      if not first or who < first[1] then first = {who, left} end
      if who > node and (not next or who < next[1]) then next = {who, left} end
    end
  end
  next = next or first
  if living > 100 then others = {unpack(others, living - 99)} end
  if lease > 0 then
    living = living + 1
    kept[living] = int(now + lease) .. ':' .. node
  end
  return others, living, gone or known ~= (lease > 0), next and next[2] or -1, table.concat(kept, ' '), last
end
