-- The stored state of the buckets as text, "at:used:unit". One command each.

local capacity, refill, unit = p1, p2, p3

local function read(key)
  local stored = redis.pcall('GET', key)
  local at, used, stored_unit
  if type(stored) == 'string' then
    at, used, stored_unit = string.match(stored, '^(%d+):(%d+):(%d+)$')
  elseif stored then
    raise(stored)
  end
  if not at then
    return 0, 0, 0
  end
  return tonumber(at), tonumber(used), tonumber(stored_unit)
end

local function write(key, reset, at, used, stored_unit)
  redis.call('SET', key, string.format('%.0f:%.0f:%.0f', at, used, stored_unit), 'PX', ttl(reset))
end

