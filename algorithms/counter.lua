-- The stored state of every rule that needs no more than three integers (all but the
-- log), as text: "at:used:extra". extra is previous or unit, see the rule.
-- One command each. ttl is in milliseconds.

local function read(key)
  local stored = redis.call('GET', key)
  if not stored then
    return 0, 0, 0
  end
  local at, used, extra = string.match(stored, '^(%d+):(%d+):(%d+)$')
  if not at then
    return 0, 0, 0
  end
  return tonumber(at), tonumber(used), tonumber(extra)
end

local function write(key, ttl, at, used, extra)
  redis.call('SET', key, string.format('%.0f:%.0f:%.0f', at, used, extra), 'PX', ttl)
end

