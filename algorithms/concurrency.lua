-- Mirrors concurrency.go. Times and lease in microseconds.
-- State, format cc1: a sorted set with a member for each unit in flight. Score: when it was
-- taken; member: "when:number", numbered from 0 on within a microsecond.
--
-- A decision reads three or four commands, whatever the number of units; taking writes
-- one for each unit, giving back one for all of them.

local limit, lease = p1, p2
local MAX_HELD = 100000

-- read returns when the newest unit was taken (0: none is held) and the units: how many
-- stand there, how many of them were taken at a time or before, and when that of a rank
-- was. What is no sorted set is none.
local function read(key)
  local held = {}
  function held.count()
    return redis.call('ZCARD', key)
  end
  function held.older(time)
    return redis.call('ZCOUNT', key, '-inf', time)
  end
  function held.taken(rank)
    local unit = redis.pcall('ZRANGE', key, rank, rank, 'WITHSCORES')
    if not unit[1] then
      raise(unit)
      return 0
    end
    return tonumber(unit[2])
  end
  return held.taken(-1), held, nil
end

-- A change names what to do to the stored units: remove those of ranks first to last;
-- clear all or forget those up to floor; add so many taken at a time, numbered from number.
local function write(key, reset, _, change)
  if change.first then
    redis.call('ZREMRANGEBYRANK', key, change.first, change.last)
  end
  if change.clear then
    redis.call('DEL', key)
  elseif change.floor then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', change.floor)
  end
  for number = change.number, change.number + change.add - 1 do
    redis.call('ZADD', key, change.at, string.format('%.0f:%05.0f', change.at, number))
  end
  redis.call('PEXPIRE', key, ttl(reset))
end

-- forget returns the rank of the first unit still held, how many are, when the newest was
-- taken, and the change that brings the stored units there.
local function forget(at, held, now)
  local change = { at = at, add = 0, number = 0 }
  if at == 0 then
    change.clear = true
    return 0, 0, 0, change
  end
  local floor = math.max(now, at) - lease
  local first, count = held.older(floor), held.count()
  local used = count - first
  if used == 0 then
    change.clear = true
  elseif at - now > lease + CLOCK_SLACK then
    at, first = now, 0
    change.clear, change.at, change.add = true, now, used
  elseif first > 0 then
    change.floor = floor
  end
  return first, used, at, change
end

-- hold adds units taken now to a change.
local function hold(change, at, held, now, add)
  if not change.clear and at == now then
    change.number = held.count() - held.older(now - 1)
  end
  change.at, change.add = now, change.add + add
end

-- Of the units the reply tells when the newest was taken and how many are held.
local function step(at, held, _, now, cost)
  local _, used, change
  _, used, at, change = forget(at, held, now)
  now = math.max(now, at)

  local allowed, newest, before = cost <= limit - used, at, used
  if allowed and cost > 0 then
    hold(change, at, held, now, cost)
    at, used = now, used + cost
  end

  local reset = 0
  if used > 0 then
    reset = at + lease - now
  end
  return allowed, reset, at, change, nil, newest, before, 0
end

local function settle(at, held, _, now, units, taken)
  local first, used, change
  first, used, at, change = forget(at, held, now)
  if units > 0 then
    now = math.max(now, at)
    units = math.min(units, MAX_HELD - used)
    if units > 0 then
      hold(change, at, held, now, units)
      at = now
    end
    return at + lease - now, at, change, nil
  end

  -- Of the ranks that may give back, the last do. After a clock set back all units are
  -- those of the change.
  local from, to = first, first + used
  if change.add > 0 then
    if taken ~= 0 and taken ~= change.at then
      to = from
    end
  elseif taken ~= 0 then
    from, to = math.max(from, held.older(taken - 1)), held.older(taken)
  end
  local back = math.max(0, math.min(-units, to - from))
  if back == used then
    return 0, 0, { clear = true, add = 0, number = 0 }, nil
  end
  if change.add > 0 then
    change.add = change.add - back
  elseif back > 0 then
    change.first, change.last = to - back, to - 1
    if to == first + used then
      at = held.taken(to - back - 1)
    end
  end
  return at + lease - math.max(now, at), at, change, nil
end

