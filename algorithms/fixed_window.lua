-- Mirrors fixed_window.go. Times and window in microseconds.
-- State, format fw2: at (start of the current window), used, 0.

local function roll(at, used, now)
  local start = now - now % window
  if start > at then
    return start, 0
  elseif at - now > 2 * window + CLOCK_SLACK then
    return start, used
  end
  return at, used
end

local function reset_after(at, used, now)
  if used > 0 then
    return at + window - now
  end
  return 0
end

local function step(at, used, _, now, cost)
  at, used = roll(at, used, now)
  local allowed = cost <= limit - used
  if allowed then
    used = used + cost
  end
  return allowed, reset_after(at, used, now), at, used, 0
end

local function settle(at, used, _, now, units, taken)
  at, used = roll(at, used, now)
  if units < 0 and taken ~= 0 and taken - taken % window ~= at then
    return reset_after(at, used, now), at, used, 0
  end
  units = math.max(-MAX_EXACT, math.min(units, MAX_EXACT))
  used = math.max(0, math.min(used + units, MAX_EXACT))
  return reset_after(at, used, now), at, used, 0
end

