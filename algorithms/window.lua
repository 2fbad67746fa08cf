-- The stored state of the rules of clock windows, one command to read and one to write.
-- Times are microseconds.
--
-- It is one integer, (number of the window % cycle * base + previous) * base + used, which
-- Redis keeps in 16 bytes and adds to in place. A key lives for two windows at most, so
-- the nearest window of that number is meant; cycle is so large that only a clock set
-- back by more than 50 days, or 32 windows, takes another. base is what is left of 2^53:
-- 247,865 a minute. Counts from base on are text, "at:used:previous".

local limit, window = p1, p2
local cycle = math.max(64, math.ceil(8796093022208 / window))
local base = math.floor(math.sqrt(MAX_EXACT / cycle))
local current = math.floor(now / window)

local function read(key)
  local stored = redis.pcall('GET', key)
  local packed = tonumber(stored)
  if packed and packed >= 0 and packed < MAX_EXACT then
    local used = packed % base
    packed = (packed - used) / base
    local previous = packed % base
    local ahead = ((packed - previous) / base - current) % cycle
    if ahead >= cycle / 2 then
      ahead = ahead - cycle
    end
    return (current + ahead) * window, used, previous
  end
  local at, used, previous
  if type(stored) == 'string' then
    at, used, previous = string.match(stored, '^(%d+):(%d+):(%d+)$')
  elseif stored then
    raise(stored)
  end
  if not at then
    return 0, 0, 0
  end
  return tonumber(at), tonumber(used), tonumber(previous)
end

-- Within a window nothing but used changes, and the expiry stays what it was.
local function write(key, reset, at, used, previous, was_at, was_used)
  if used >= base or previous >= base then
    redis.call('SET', key, string.format('%.0f:%.0f:%.0f', at, used, previous), 'PX', ttl(reset))
    return
  end
  local packed = (at / window % cycle * base + previous) * base + used
  if at == was_at and was_used > 0 then
    local sum
    if used - was_used == 1 then
      sum = redis.pcall('INCR', key)
    else
      sum = redis.pcall('INCRBY', key, used - was_used)
    end
    if sum == packed then
      return
    end
  end
  redis.call('SET', key, packed, 'PX', ttl(reset))
end

