-- Mirrors sliding_window_log.go. Times and window in microseconds.
-- State, format sl1: a sorted set of the admitted requests. Score: when; member:
-- "total:cost", total being the sum of all costs up to and including this one, padded
-- so that entries of one microsecond stay in order.
--
-- A refusal reads about log2(n) entries more than an admission; an admission writes
-- once and forgets what is a window old. ttl is in milliseconds.

-- read returns when the newest entry came (0: no entry) and the log: how many entries
-- stand in it, how many of them came at floor or before, and each of them by rank.
local function read(key)
  local log = {}
  function log.count()
    return redis.call('ZCARD', key)
  end
  function log.older(floor)
    return redis.call('ZCOUNT', key, '-inf', floor)
  end
  function log.entry(rank)
    local entry = redis.call('ZRANGE', key, rank, rank, 'WITHSCORES')
    if not entry[1] then
      return 0, 0, 0
    end
    local total, cost = string.match(entry[1], '^(%d+):(%d+)$')
    return tonumber(entry[2]), tonumber(total), tonumber(cost)
  end
  return (log.entry(-1)), log, nil
end

-- A change names what to do to the stored log: keep only so many of the oldest; clear it
-- or forget all up to floor; add one entry.
local function write(key, ttl, _, change)
  if change.keep then
    redis.call('ZREMRANGEBYRANK', key, change.keep, -1)
  end
  if change.clear then
    redis.call('DEL', key)
  elseif change.floor then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', change.floor)
  end
  if change.cost then
    redis.call('ZADD', key, change.at, string.format('%016.0f:%.0f', change.total, change.cost))
  end
  redis.call('PEXPIRE', key, ttl)
end

-- forget returns the rank of the first entry that counts, the number of entries, the
-- total before that first one, the units in use, the time of the newest entry, and
-- the change that brings the stored log there.
local function forget(at, log, now, window)
  if at == 0 then
    return 0, 0, 0, 0, 0, { clear = true }
  end
  local floor = math.max(now, at) - window
  local first, count = log.older(floor), log.count()
  if first == count then
    return 0, 0, 0, 0, at, { clear = true }
  end
  local _, total, cost = log.entry(first)
  local _, used = log.entry(-1)
  local previous = total - cost
  used = used - previous
  if at - now > window + CLOCK_SLACK then
    return 0, 0, 0, used, now, { clear = true, at = now, total = used, cost = used }
  end
  return first, count, previous, used, at, { floor = floor }
end

local function step(at, log, _, now, cost, limit, window)
  local first, count, previous, used, change
  first, count, previous, used, at, change = forget(at, log, now, window)

  local allowed, retry = 0, 0
  if cost > limit then
    retry = NEVER
  elseif used + cost > limit then
    local target = previous + used + cost - limit
    local leaving = at
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
    retry = leaving + window - now
  else
    allowed = 1
    if cost > 0 then
      at = math.max(now, at)
      -- After a clock set back the one entry that stands for all of them grows.
      change.at, change.total, change.cost = at, previous + used + cost, (change.cost or 0) + cost
      used = used + cost
    end
  end

  local reset = 0
  if used > 0 then
    reset = at + window - now
  end
  return allowed, math.max(0, limit - used), reset, retry, 0, at, change, nil
end

local function settle(at, log, _, now, units, limit, window)
  local first, count, previous, used, change
  first, count, previous, used, at, change = forget(at, log, now, window)
  if units > 0 then
    units = math.min(units, MAX_LOG)
    at = math.max(now, at)
    change.at, change.total, change.cost = at, previous + used + units, (change.cost or 0) + units
    return at + window - now, at, change, nil
  end
  used = used + math.max(units, -MAX_EXACT)
  if used <= 0 then
    return 0, 0, { clear = true }, nil
  end
  if count == 0 then
    change.total, change.cost = used, used
    return at + window - now, at, change, nil
  end
  local low, high = first, count - 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, total = log.entry(middle)
    if total >= previous + used then
      high = middle
    else
      low = middle + 1
    end
  end
  local came, total, cost = log.entry(low)
  change.keep = low
  change.at, change.total, change.cost = came, previous + used, cost - (total - previous - used)
  return came + window - now, came, change, nil
end

