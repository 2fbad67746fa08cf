-- Mirrors token_bucket.go. Times in microseconds; refill is parts a microsecond, unit
-- parts a token, used is in parts.
-- State, format tb1: at (last refill), used, the unit that used is written in.

local function drain(at, used, stored_unit, now, capacity, refill, unit)
  if stored_unit ~= unit and stored_unit > 0 then
    used = math.min(math.ceil(used / stored_unit), math.floor(MAX_EXACT / unit)) * unit
  end
  local recovery = math.ceil(used / refill)
  local elapsed = now - at
  if elapsed >= recovery then
    return now, 0
  elseif elapsed >= 0 then
    return now, used - elapsed * refill
  elseif -elapsed > math.ceil(capacity * unit / refill) + CLOCK_SLACK then
    return now, used
  end
  return at, used
end

local function reset_after(at, used, now, refill)
  if used > 0 then
    return at - now + math.ceil(used / refill)
  end
  return 0
end

local function step(at, used, stored_unit, now, cost, capacity, refill, unit)
  at, used = drain(at, used, stored_unit, now, capacity, refill, unit)

  local allowed, retry = 0, 0
  if cost > capacity then
    retry = NEVER
  elseif used > (capacity - cost) * unit then
    retry = at - now + math.ceil((used - (capacity - cost) * unit) / refill)
  else
    allowed = 1
    used = used + cost * unit
  end

  local remaining = math.floor(math.max(0, capacity * unit - used) / unit)
  return allowed, remaining, reset_after(at, used, now, refill), retry, 0, at, used, unit
end

local function settle(at, used, stored_unit, now, units, _, capacity, refill, unit)
  at, used = drain(at, used, stored_unit, now, capacity, refill, unit)
  local most = math.floor(MAX_EXACT / unit)
  used = math.max(0, math.min(used + math.max(-most, math.min(units, most)) * unit, most * unit))
  return reset_after(at, used, now, refill), at, used, unit
end

