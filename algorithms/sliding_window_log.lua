-- Mirrors sliding_window_log.go. Times and window in microseconds.
-- State, format sl1: a sorted set of the admitted requests. Score: when; member:
-- "total:cost", total being the sum of all costs up to and including this one, padded
-- so that entries of one microsecond stay in order.
--
-- A refusal reads about log2(n) entries more than an admission; an admission writes
-- once and forgets what is a window old.

local limit, window = p1, p2

-- read returns when the newest entry came (0: no entry) and the log: how many entries
-- stand in it, how many of them came at floor or before, and each of them by rank. What
-- is no sorted set of ours is an empty log.
local function read(key)
  local log = {}
  function log.count()
    return redis.call('ZCARD', key)
  end
  function log.older(floor)
    return redis.call('ZCOUNT', key, '-inf', floor)
  end
  function log.entry(rank)
    local entry = redis.pcall('ZRANGE', key, rank, rank, 'WITHSCORES')
    if not entry[1] then
      raise(entry)
      return 0, 0, 0
    end
    local total, cost = string.match(entry[1], '^(%d+):(%d+)$')
    return tonumber(entry[2]), tonumber(total) or 0, tonumber(cost) or 0
  end
  local at, total = log.entry(-1)
  log.total = total
  return at, log, nil
end

-- A change names what to do to the stored log: keep only so many of the oldest; clear it
-- or forget all up to floor; add entries of at, total, cost.
local function write(key, reset, _, change)
  if change.keep then
    redis.call('ZREMRANGEBYRANK', key, change.keep, -1)
  end
  if change.clear then
    redis.call('DEL', key)
  elseif change.floor then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', change.floor)
  end
  for _, entry in ipairs(change) do
    redis.call('ZADD', key, entry.at, string.format('%016.0f:%.0f', entry.total, entry.cost))
  end
  redis.call('PEXPIRE', key, ttl(reset))
end

-- forget returns the rank of the first entry that counts, the number of entries, the
-- total before that first one, the units in use, the time of the newest entry, and
-- the change that brings the stored log there.
local function forget(at, log, now)
  if at == 0 then
    return 0, 0, 0, 0, 0, { clear = true }
  end
  local floor = math.max(now, at) - window
  local first, count = log.older(floor), log.count()
  if first == count then
    return 0, 0, 0, 0, at, { clear = true }
  end
  local _, total, cost = log.entry(first)
  local previous = total - cost
  local used = log.total - previous
  if at - now > window + CLOCK_SLACK then
    return 0, 0, 0, used, now, { clear = true, { at = now, total = used, cost = used } }
  end
  return first, count, previous, used, at, { floor = floor }
end

-- Of a log the reply tells the time of the newest entry, the units in use and, after a
-- refusal, the time of the entry with which enough will have left.
local function step(at, log, _, now, cost)
  local first, count, previous, used, change
  first, count, previous, used, at, change = forget(at, log, now)

  local allowed, newest, before, leaving = used + cost <= limit, at, used, 0
  if allowed and cost > 0 then
    at = math.max(now, at)
    used = used + cost
    change[#change + 1] = { at = at, total = previous + used, cost = cost }
  elseif not allowed and cost <= limit then
    local target = previous + used + cost - limit
    leaving = at
    local low, high = first, count - 1
    while low <= high do
      local middle = math.floor((low + high) / 2)
      local came, total = log.entry(middle)
      if total >= target then
        leaving = came
        high = middle - 1
      else
        low = middle + 1
      end
    end
  end

  local reset = 0
  if used > 0 then
    reset = at + window - now
  end
  return allowed, reset, at, change, nil, newest, before, leaving
end

local function settle(at, log, _, now, units, taken)
  local first, count, previous, used, change
  first, count, previous, used, at, change = forget(at, log, now)
  if units > 0 then
    units = math.min(units, MAX_LOG)
    at = math.max(now, at)
    change[#change + 1] = { at = at, total = previous + used + units, cost = units }
    return at + window - now, at, change, nil
  end
  if used == 0 then
    return 0, 0, { clear = true }, nil
  end
  units = math.max(units, -MAX_EXACT)

  -- The log after a clock set back is the one entry of the change; else it is what is
  -- stored from rank first on. Either way rank last is the newest that may give back.
  local function entry(rank)
    if change[1] then
      return change[1].at, change[1].total, change[1].cost
    end
    return log.entry(rank)
  end
  local length = change[1] and 1 or count
  local last = length - 1
  if taken ~= 0 and not change[1] then
    last = math.min(last, log.older(taken) - 1)
  end
  local left, rank = units, last
  local changed = {}
  while rank >= first and left < 0 do
    local came, total, cost = entry(rank)
    if taken ~= 0 and came ~= taken then
      break
    end
    local back = math.min(cost, -left)
    left = left + back
    changed[rank] = cost - back
    rank = rank - 1
  end
  if left == units then
    return at + window - now, at, change, nil
  end

  -- Everything from the oldest changed entry on is written anew, with its new total.
  local oldest = rank + 1
  local _, total, cost = entry(oldest)
  total = total - cost
  local rewritten = { keep = not change[1] and oldest or nil, floor = change.floor, clear = change.clear }
  for r = oldest, length - 1 do
    local came, _, old_cost = entry(r)
    local new_cost = changed[r] or old_cost
    if new_cost > 0 then
      total = total + new_cost
      rewritten[#rewritten + 1] = { at = came, total = total, cost = new_cost }
    end
  end
  if #rewritten > 0 then
    at = rewritten[#rewritten].at
  elseif oldest > first then
    at = (entry(oldest - 1))
  else
    return 0, 0, { clear = true }, nil
  end
  return at + window - now, at, rewritten, nil
end

