-- Mirrors token_bucket.go, and leaky_bucket.go, which admits the same. Times in
-- microseconds; refill is parts a microsecond, unit parts a token, used is in parts.
-- State, formats tb1 and lb1: at (last refill), used, the unit that used is written in.

local function drain(at, used, stored_unit, now)
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

local function reset_after(at, used, now)
  if used > 0 then
    return at - now + math.ceil(used / refill)
  end
  return 0
end

local function step(at, used, stored_unit, now, cost)
  at, used = drain(at, used, stored_unit, now)
  local allowed = used <= (capacity - cost) * unit
  if allowed then
    used = used + cost * unit
  end
  return allowed, reset_after(at, used, now), at, used, unit
end

local function settle(at, used, stored_unit, now, units)
  at, used = drain(at, used, stored_unit, now)
  local most = math.floor(MAX_EXACT / unit)
  used = math.max(0, math.min(used + math.max(-most, math.min(units, most)) * unit, most * unit))
  return reset_after(at, used, now), at, used, unit
end

