-- Reads a page of the audit log, the newest record first.
--
-- Input:
--   KEYS[1]  audit (HASH), see append_audit_record.lua
--   ARGV[1]  number that the page is before; 0 for the newest page
--   ARGV[2]  length of the page, at most 100
-- Output: number and '<time us> <record>' of each record.
-- Complexity: O(length of the page).
local last = tonumber(redis.call('HGET', KEYS[1], 'last') or '0')
local before = tonumber(ARGV[1])
if before > 0 then last = math.min(last, before - 1) end
local page = {}
for number = last, math.max(last - tonumber(ARGV[2]) + 1, 1), -1 do
  local field = string.format('%.0f', number)
  local stored = redis.call('HGET', KEYS[1], field)
  if not stored then break end
  page[#page + 1] = field
  page[#page + 1] = stored
end
return page
