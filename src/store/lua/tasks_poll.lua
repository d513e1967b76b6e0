-- One turn of a worker: ends runs, takes back those whose lease is over, and starts what is due.
--
-- KEYS z of the queue, zr of the worker. The queue's other names are made of the first.
-- ARGV[1] in one text: '<node>:<worker>.<number of the turn>'; one more than the runs wanted; '1' if it stands in zw;
-- '1' if there is an end that is no mere success; lease, us; ms that zr lives; us it may be idle, 0 = it is not to be woken; most that run at once, 0 any; us between two starts, 0
-- any; starts at once; us dead letters are kept; most of them; most bytes of them; crashes that kill. Then each end: its
-- terms in one text, and the run: 'd' bytes | 'r' retry / 'k' dead / 'b' back: bytes, delay us, fault, reason; with a
-- unique key the letter is a capital, and the key follows.
-- Returns {'1' or '0' (lost) per end, us until it should look again or -1, '1' it stands in zw now, '2' and nothing
--   waits, runs, or is to be thrown away,
--   then each run: id, attempt, record}: no more of them than BYTES of records, but one in any case; who could have
--   had more is to look again at once, as if more leases are over than were seen to
-- O((ends + runs + taken back) * log n), at most 100 of each, and BYTES of their records; of those that are handed back
-- without a delay the caller sends no more than that. Idempotent: zr has the number of the worker's last turn
-- and what it was told. A run is its owner's while '<id><worker>.<turn>' stands in zl: whoever comes late finds that
-- it does not. Where a caller has gone, its runs are taken back when their leases end.
-- What is rare (an end that is no mere success, a lease that is over, limits, once a second the sweep) is done by
-- functions that are only made then.
-- Of a task whose record has vanished nothing is left where that is seen, but what is its alone.
local match, sub, byte = string.match, string.sub, string.byte
local WAITING, LAST_POLL = KEYS[1], KEYS[2]
local split_at = string.find(WAITING, '}:z:', 1, true)
local shard_prefix, queue_name = sub(WAITING, 1, split_at + 1), sub(WAITING, split_at + 3)
local LEASES, RECORDS, FAILURES, QUEUE_META, IDLE_WORKERS = shard_prefix .. 'zl' .. queue_name, shard_prefix .. 'zt' .. queue_name, shard_prefix .. 'zm' .. queue_name, shard_prefix .. 'zf' .. queue_name, shard_prefix .. 'zw' .. queue_name
local worker, run_suffix, row_limit, idle_state, has_failures, terms = match(ARGV[1], '^([^:]*:%x*)(%.%d+) (%d+) (%d) (%d) (.*)$')
local lease_us, poll_ttl_ms, idle_us
lease_us, poll_ttl_ms, idle_us, terms = match(terms, '^(%d+) (%d+) (%d+) (.*)$')
local poll_number, wanted = sub(run_suffix, 2), row_limit - 1
run_suffix = match(worker, '%x*$') .. run_suffix
local has_limits = sub(terms, 1, 4) ~= '0 0 '
-- How many records are read at once.
local RECORDS_PER_READ = 16

local last_poll = call('GET', LAST_POLL)
if last_poll then
  local last_number, last_outcomes, last_ids = match(last_poll, '^(%d+) (%d*) (.*)$')
  -- A turn that comes after its successor: nobody waits for it.
  if #last_number > #poll_number or #last_number == #poll_number and last_number > poll_number then return {'', '-1', '0'} end
  if last_number == poll_number then
    local results = {last_outcomes, '0', call('ZSCORE', IDLE_WORKERS, worker) and '1' or '0'}
    for i = 1, #last_ids, ID_LENGTH do
      local id = sub(last_ids, i, i + ID_LENGTH - 1)
      local record = call('ZSCORE', LEASES, id .. run_suffix) and call('HGET', RECORDS, id)
      if record then
        local n = #results
        results[n + 1], results[n + 2], results[n + 3] = id, match(call('HGET', FAILURES, id) or '0', '^%d+') + 1, record
      end
    end
    return results
  end
end

local meta = call('HMGET', QUEUE_META, 'paused', 'guard', 'swept')
local is_paused, guard, guarded_us = meta[1], nil, 0
if meta[2] then guard, guarded_us = parse_guard(meta[2]) end
-- When the soonest of those that wait again is due; whether anything has gone wrong with any task: mostly not,
-- and zm is not there.
local soonest_retry_us, has_failure_notes
local swept_us = tonumber(meta[3]) or 0
local is_sweep_due = now_us - swept_us >= 1000000 or now_us < swept_us
-- An idle queue has nothing at all, mostly: then there is nothing to look at, either.
local is_empty = is_sweep_due and not ARGV[2] and call('EXISTS', WAITING, LEASES, shard_prefix .. 'zd' .. queue_name) == 0
local first_lease_end_us = not is_empty and call('ZRANGE', LEASES, '0', '0', 'WITHSCORES')[2]
local has_lapsed_leases = first_lease_end_us and tonumber(first_lease_end_us) <= now_us
local slow_path = {}
if is_sweep_due or has_lapsed_leases or has_limits or has_failures == '1' then
  local max_running, start_interval_us, burst, dead_retention_us, max_dead, max_dead_bytes, max_crashes = match(terms, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
  local UNIQUE_KEYS, DEAD_LETTERS, PAGE_SIZE = shard_prefix .. 'zu' .. queue_name, shard_prefix .. 'zd' .. queue_name, 100
  local FAULT_COUNTERS = {f = 'failed', u = 'failed', p = 'panicked', c = 'crashed'}
  local function read_counter(field) return tonumber(call('HGET', QUEUE_META, field) or '0') or 0 end
  local function add_to_counter(field, n) call('HINCRBY', QUEUE_META, field, integer(n)) end
  -- Where it waits again, and from when on.
  local function requeue_task(id, due_us)
    call('ZADD', WAITING, integer(due_us), id)
    if not soonest_retry_us or due_us < soonest_retry_us then soonest_retry_us = due_us end
  end
  local function tail_due_us(delay_us)
    local sequence = next_sequence(read_counter('seq'))
    call('HSET', QUEUE_META, 'seq', integer(sequence))
    return sequence + delay_us
  end
  function slow_path.release_unique_key(unique_key, id)
    if unique_key and call('HGET', UNIQUE_KEYS, unique_key) == id then call('HDEL', UNIQUE_KEYS, unique_key) end
  end
  -- Notes what went wrong; attempts and crashes so far.
  local function record_failure(id, fault, reason)
    local attempts, crash_count, history = match(call('HGET', FAILURES, id) or '', '^(%d+) (%d+)\n(.*)$')
    attempts, crash_count = tonumber(attempts or '0') + 1, tonumber(crash_count or '0') + (fault == 'c' and 1 or 0)
    history = (history or '') .. integer(now_us) .. ' ' .. fault .. ' ' .. reason .. '\n'
    local _, lines = string.gsub(history, '\n', '')
    for _ = MAX_HISTORY + 1, lines do history = string.gsub(history, '^[^\n]*\n', '', 1) end
    call('HSET', FAILURES, id, attempts .. ' ' .. crash_count .. '\n' .. history)
    has_failure_notes = true
    add_to_counter(FAULT_COUNTERS[fault] or 'failed', 1)
    return attempts, crash_count
  end
  local function purge_dead_letters(ids)
    if #ids == 0 then return end
    local freed_bytes = 0
    for _, id in ipairs(ids) do freed_bytes = freed_bytes + call('HSTRLEN', RECORDS, id) end
    add_to_counter('buried', -freed_bytes)
    call('ZREM', DEAD_LETTERS, unpack(ids))
    call('HDEL', RECORDS, unpack(ids))
    call('HDEL', FAILURES, unpack(ids))
    add_to_counter('trimmed', #ids)
  end
  -- The oldest go while there are too many, or too large ones: so many in a call, the others in the next. The newest
  -- stays where there is another one, also if its time ends first: nobody has seen it yet.
  local purge_budget = PAGE_SIZE
  local function purge_excess(newest)
    while purge_budget > 0 and (call('ZCARD', DEAD_LETTERS) > tonumber(max_dead) or read_counter('buried') > tonumber(max_dead_bytes)) do
      local oldest = call('ZRANGE', DEAD_LETTERS, '0', '1')
      -- What a record that vanished was counted as is not known: nothing left is nothing counted.
      if not oldest[1] then return call('HSET', QUEUE_META, 'buried', '0') end
      purge_budget = purge_budget - 1
      purge_dead_letters({oldest[1] == newest and oldest[2] or oldest[1]})
    end
  end
  -- Each letter has a microsecond of its own: a page ends behind one, and another of the same would be on none. Mostly
  -- it is free at once; those of one call follow each other.
  local dead_stamp_us = now_us + dead_retention_us
  local function add_dead_letter(id, record_bytes, unique_key)
    slow_path.release_unique_key(unique_key, id)
    for _ = 1, 1000 do
      if call('ZCOUNT', DEAD_LETTERS, integer(dead_stamp_us), integer(dead_stamp_us)) == 0 then break end
      dead_stamp_us = dead_stamp_us + 1
    end
    call('ZADD', DEAD_LETTERS, integer(dead_stamp_us), id)
    dead_stamp_us = dead_stamp_us + 1
    add_to_counter('dead', 1)
    add_to_counter('bytes', -record_bytes)
    add_to_counter('buried', call('HSTRLEN', RECORDS, id))
    purge_excess(id)
  end
  function slow_path.settle_failure(settlement)
    local delay_us, fault, reason = match(settlement.rest, '^ (%d+) (%a?) (.*)$')
    delay_us = tonumber(delay_us)
    if settlement.kind == 'b' then
      local due_us = now_us + delay_us
      -- It is first again: it has been waiting since it was pushed.
      if delay_us == 0 then due_us = min(tonumber(match(call('HGET', RECORDS, settlement.id) or '', '^%d+') or now_us), now_us) end
      requeue_task(settlement.id, due_us)
    else
      record_failure(settlement.id, fault, reason)
      if settlement.kind == 'r' then requeue_task(settlement.id, tail_due_us(delay_us)) else add_dead_letter(settlement.id, settlement.bytes, settlement.unique_key) end
    end
  end
  -- Runs whose lease is over: their worker has died, or has stood still for too long. True if there may be more of them.
  function slow_path.reap_lapsed()
    local lapsed_runs = call('ZRANGEBYSCORE', LEASES, '-inf', integer(now_us), 'LIMIT', '0', PAGE_SIZE)
    local members, read_bytes = {}, 0
    for i, member in ipairs(lapsed_runs) do
      read_bytes = read_bytes + call('HSTRLEN', RECORDS, sub(member, 1, ID_LENGTH))
      if i > 1 and read_bytes > MAX_READ_BYTES then break end
      members[i] = member
    end
    if members[1] then call('ZREM', LEASES, unpack(members)) end
    for i, member in ipairs(members) do
      local id = sub(member, 1, ID_LENGTH)
      local record = call('HGET', RECORDS, id)
      local is_repeatable, max_attempts, unique_key = match(record or '', '^%d+ (%d) (%d+) ([^ \n]*)')
      if not record then
        call('HDEL', FAILURES, id)
        add_to_counter('lost', 1)
      else
        local attempts, crash_count = record_failure(id, 'c', 'crashed, may have run')
        if is_repeatable == '0' or attempts >= tonumber(max_attempts or '0') or crash_count >= tonumber(max_crashes) then
          add_dead_letter(id, #record, unique_key)
        else
          -- In their order, and all of them due.
          requeue_task(id, now_us - #members + i)
        end
      end
    end
    return #members < #lapsed_runs or #lapsed_runs == PAGE_SIZE
  end
  -- How many may be started now, and when there may be more if that is known.
  function slow_path.start_budget()
    local budget, available_at_us = wanted, nil
    if max_running ~= '0' then budget = min(budget, max(max_running - call('ZCARD', LEASES), 0)) end
    if start_interval_us ~= '0' then
      -- A debt in time: each start owes one interval. No debt is ever more than the burst's: the clock was put back.
      local stored_tat = read_counter('tat')
      slow_path.tat = min(max(stored_tat, now_us), now_us + burst * start_interval_us)
      if slow_path.tat < stored_tat then call('HSET', QUEUE_META, 'tat', integer(slow_path.tat)) end
      local allowed = floor((now_us + burst * start_interval_us - slow_path.tat) / start_interval_us)
      if allowed < budget then budget, available_at_us = allowed, slow_path.tat - (burst - 1) * start_interval_us end
    end
    return budget, available_at_us
  end
  function slow_path.charge_starts(n)
    if start_interval_us ~= '0' then call('HSET', QUEUE_META, 'tat', integer(slow_path.tat + n * start_interval_us)) end
  end
  function slow_path.sweep()
    call('HSET', QUEUE_META, 'swept', integer(now_us))
    if is_empty then
      local byte_counters = call('HMGET', QUEUE_META, 'bytes', 'buried')
      if tonumber(byte_counters[2] or '0') > tonumber(max_dead_bytes) then purge_excess() end
      slow_path.has_more = purge_budget == 0
      if tonumber(byte_counters[1] or '0') ~= 0 then call('HSET', QUEUE_META, 'bytes', '0') end
      return
    end
    local expired_ids = call('ZRANGEBYSCORE', DEAD_LETTERS, '-inf', integer(now_us), 'LIMIT', '0', PAGE_SIZE)
    purge_dead_letters(expired_ids)
    purge_excess()
    -- There may be more to throw away: by the next turn, which is to come soon.
    slow_path.has_more = #expired_ids == PAGE_SIZE or purge_budget == 0
    -- What a record that vanished was counted as is not known: nothing left is nothing counted.
    if call('EXISTS', WAITING, LEASES) == 0 and read_counter('bytes') ~= 0 then call('HSET', QUEUE_META, 'bytes', '0') end
  end
end

-- Without room it goes on as well, and makes some (see renew.lua). Where a run has ended well, what ends it does that.
if has_failures == '1' or not ARGV[2] then call('ZREM', LEASES, '') end
local outcomes = ''
if has_failures == '0' and not ARGV[4] then
  -- At most one, which was a success.
  if ARGV[2] then
    local run = ARGV[3]
    outcomes = tostring(call('ZREM', LEASES, run))
    if outcomes == '1' then
      local id = sub(run, 1, ID_LENGTH)
      call('HDEL', RECORDS, id)
      has_failure_notes = call('EXISTS', FAILURES) == 1
      if has_failure_notes then call('HDEL', FAILURES, id) end
      call('HINCRBY', QUEUE_META, 'bytes', '-' .. sub(ARGV[2], 2))
      call('HINCRBY', QUEUE_META, 'done', '1')
    end
  end
else
  local settlements, members, settled_members, done_ids, done_bytes, arg_index, outcome_list = {}, {}, {}, {}, 0, 2, {}
  while ARGV[arg_index] do
    local letter, byte_count, rest = match(ARGV[arg_index], '^(%a)(%d+)(.*)$')
    local run, kind = ARGV[arg_index + 1], string.lower(letter)
    local settlement = {kind = kind, run = run, id = sub(run, 1, ID_LENGTH), bytes = tonumber(byte_count), rest = rest}
    arg_index = arg_index + 2
    if letter ~= kind then settlement.unique_key, arg_index = ARGV[arg_index], arg_index + 1 end
    settlements[#settlements + 1], members[#members + 1] = settlement, run
  end
  local lease_ends = call('ZMSCORE', LEASES, unpack(members))
  for i, settlement in ipairs(settlements) do
    outcome_list[i] = lease_ends[i] and '1' or '0'
    if lease_ends[i] then
      settled_members[#settled_members + 1] = settlement.run
      if settlement.kind == 'd' then
        done_ids[#done_ids + 1], done_bytes = settlement.id, done_bytes + settlement.bytes
        if settlement.unique_key then slow_path.release_unique_key(settlement.unique_key, settlement.id) end
      end
    end
  end
  outcomes = table.concat(outcome_list)
  call('ZREM', LEASES, unpack(settled_members[1] and settled_members or {''}))
  if done_ids[1] then
    call('HDEL', RECORDS, unpack(done_ids))
    has_failure_notes = call('EXISTS', FAILURES) == 1
    if has_failure_notes then call('HDEL', FAILURES, unpack(done_ids)) end
    call('HINCRBY', QUEUE_META, 'bytes', done_bytes > 0 and integer(-done_bytes) or '0')
    call('HINCRBY', QUEUE_META, 'done', integer(#done_ids))
  end
  for i, settlement in ipairs(settlements) do
    if lease_ends[i] and settlement.kind ~= 'd' then slow_path.settle_failure(settlement) end
  end
end
local more_lapsed = has_lapsed_leases and slow_path.reap_lapsed()

local startable, available_at_us = wanted, nil
if is_paused then
  startable, row_limit = 0, '1'
elseif has_limits then
  startable, available_at_us = slow_path.start_budget()
  row_limit = integer(startable + 1)
end
local micros = time[2]
local now_text = time[1] .. (#micros == 6 and micros or sub('00000' .. micros, -6))
-- One more than may be started: whether any is left.
local due_ids = is_empty and {} or call('ZRANGEBYSCORE', WAITING, '-inf', now_text, 'LIMIT', '0', row_limit)
local has_more_due = #due_ids > startable
if has_more_due then due_ids[#due_ids] = nil end
local started_ids, started_count, results, is_cut = '', 0, nil, false
if due_ids[1] then
  if has_failure_notes == nil then has_failure_notes = call('EXISTS', FAILURES) == 1 end
  local lease_end_us = integer(now_us + lease_us)
  -- How many have left the line, and whether it was the bytes that left the others there.
  local removed_count = 1
  if not due_ids[2] then
    local id = due_ids[1]
    local record = call('HGET', RECORDS, id)
    call('ZREM', WAITING, id)
    if record then
      local attempt = has_failure_notes and match(call('HGET', FAILURES, id) or '0', '^%d+') + 1 or '1'
      started_ids, started_count, results = id, 1, {id, attempt, record}
      call('ZADD', LEASES, lease_end_us, id .. run_suffix)
    elseif has_failure_notes then
      call('HDEL', FAILURES, id)
    end
  else
    local record_values, failure_values, all_ids, lease_args, read_bytes, portion_start = {}, {}, {}, {}, 0, 1
    results, removed_count = {}, 0
    for i, id in ipairs(due_ids) do
      if i == portion_start + #record_values then
        portion_start = i
        local portion_end = min(i + RECORDS_PER_READ - 1, #due_ids)
        record_values = call('HMGET', RECORDS, unpack(due_ids, i, portion_end))
        failure_values = has_failure_notes and call('HMGET', FAILURES, unpack(due_ids, i, portion_end)) or failure_values
      end
      local record, n = record_values[i - portion_start + 1], started_count
      if record then
        read_bytes = read_bytes + #record
        is_cut = n > 0 and read_bytes > MAX_READ_BYTES
        if is_cut then break end
        started_count, all_ids[n + 1] = n + 1, id
        lease_args[2 * n + 1], lease_args[2 * n + 2] = lease_end_us, id .. run_suffix
        results[3 * n + 1], results[3 * n + 2], results[3 * n + 3] = id, match(failure_values[i - portion_start + 1] or '0', '^%d+') + 1, record
      elseif has_failure_notes then
        call('HDEL', FAILURES, id)
      end
      removed_count = i
    end
    call('ZREM', WAITING, unpack(due_ids, 1, removed_count))
    started_ids = table.concat(all_ids)
    if started_count > 0 then call('ZADD', LEASES, unpack(lease_args)) end
  end
  if started_count < removed_count then call('HINCRBY', QUEUE_META, 'lost', integer(removed_count - started_count)) end
  if has_limits and started_count > 0 then slow_path.charge_starts(started_count) end
end
if is_sweep_due then slow_path.sweep() end

-- Where more leases are over, that is looked at again at once, whatever else there is.
is_cut = is_cut or more_lapsed
has_more_due = has_more_due or is_cut
-- What nobody may start now is no reason to look again.
local spare_capacity, wait_us = is_cut and 0 or wanted - started_count, is_cut and '0' or '-1'
local is_held_back, goes_idle = has_more_due and not is_cut and (is_paused or startable < wanted), spare_capacity > 0 and idle_us ~= '0'
-- What comes next: of those that are left, one that is due.
local next_event_us = has_more_due and now_us or nil
if not has_more_due and not is_empty and not is_paused and (goes_idle or soonest_retry_us or guard == worker) then
  next_event_us = tonumber(call('ZRANGE', WAITING, '0', '0', 'WITHSCORES')[2])
end
if is_held_back then next_event_us = not is_paused and available_at_us or nil end
if goes_idle then
  first_lease_end_us = not is_empty and tonumber(call('ZRANGE', LEASES, '0', '0', 'WITHSCORES')[2])
  if first_lease_end_us then next_event_us = min(next_event_us or first_lease_end_us, first_lease_end_us) end
  -- Also if it stands there: its time there would be over before its next look, and nobody would wake it.
  call('ZADD', IDLE_WORKERS, integer(now_us + idle_us), worker)
  idle_state = (next_event_us or has_more_due or is_paused or slow_path.has_more) and '1' or '2'
  -- One of the idle ones has the timer. The others are told, or look when it has not been heard of.
  if next_event_us and (not guard or guard == worker or next_event_us < guarded_us) then
    call('HSET', QUEUE_META, 'guard', integer(now_us + idle_us) .. ' ' .. integer(next_event_us) .. ' ' .. worker)
    wait_us = integer(max(next_event_us - now_us, 0))
  end
else
  -- One that stops is not to be told anything, whatever it knows of its place.
  if idle_state == '1' or idle_us == '0' then call('ZREM', IDLE_WORKERS, worker) end
  idle_state = '0'
  if guard == worker then
    call('HDEL', QUEUE_META, 'guard')
    if next_event_us then wake_idle_worker(IDLE_WORKERS) end
  elseif has_more_due and not is_held_back then
    wake_idle_worker(IDLE_WORKERS)
  elseif soonest_retry_us and next_event_us and next_event_us == soonest_retry_us then
    local _, notify_sooner = make_notifiers(IDLE_WORKERS)
    notify_sooner(guard)
  end
end
call('SET', LAST_POLL, poll_number .. ' ' .. outcomes .. ' ' .. started_ids, 'PX', poll_ttl_ms)
if started_count == 1 then return {outcomes, wait_us, idle_state, results[1], results[2], results[3]} end
return {outcomes, wait_us, idle_state, unpack(results or {})}
