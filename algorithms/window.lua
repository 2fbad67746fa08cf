-- The stored state of the rules of clock windows, one command to read and one to write.
-- Times are microseconds, ttl is milliseconds.
--
-- It is one integer, (number of the window * base + previous) * base + used, which Redis
-- keeps in 16 bytes and adds to in place. base is chosen so that the integer stays
-- within 2^53 until the year 2112; counts from base on are text, "at:used:previous".

local limit, window = p1, p2
local base = math.floor(math.sqrt(2 * window))

local function read(key)
  local stored = redis.pcall('GET', key)
  local packed = tonumber(stored)
  if packed and packed >= 0 and packed < MAX_EXACT then
    local used = packed % base
    packed = (packed - used) / base
    local previous = packed % base
    return (packed - previous) / base * window, used, previous
  end
  local at, used, previous
  if type(stored) == 'string' then
    at, used, previous = string.match(stored, '^(%d+):(%d+):(%d+)$')
  end
  if not at then
    return 0, 0, 0
  end
  return tonumber(at), tonumber(used), tonumber(previous)
end

-- Within a window nothing but used changes, and the expiry stays what it was.
local function write(key, ttl, at, used, previous, was_at, was_used, was_previous)
  local packed = (at / window * base + previous) * base + used
  if used >= base or previous >= base or packed >= MAX_EXACT then
    redis.call('SET', key, string.format('%.0f:%.0f:%.0f', at, used, previous), 'PX', ttl)
    return
  end
  if at == was_at and previous == was_previous and was_used > 0 and was_used < base then
    local sum = redis.pcall('INCRBY', key, used - was_used)
    if sum == packed then
      return
    end
  end
  redis.call('SET', key, packed, 'PX', ttl)
end

