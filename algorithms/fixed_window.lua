-- Mirrors fixed_window.go. Times and window in microseconds.
-- State, format fw1: at (start of the current window), used, 0.

local function roll(at, used, now, window)
  local start = now - now % window
  if start > at then
    return start, 0
  elseif at - now > 2 * window + CLOCK_SLACK then
    return start, used
  end
  return at, used
end

local function reset_after(at, used, now, window)
  if used > 0 then
    return at + window - now
  end
  return 0
end

local function step(at, used, _, now, cost, limit, window)
  at, used = roll(at, used, now, window)

  local allowed, retry = 0, 0
  if cost > limit then
    retry = NEVER
  elseif cost > limit - used then
    retry = at + window - now
  else
    allowed = 1
    used = used + cost
  end

  return allowed, math.max(0, limit - used), reset_after(at, used, now, window), retry, 0, at, used, 0
end

local function settle(at, used, _, now, units, taken, limit, window)
  at, used = roll(at, used, now, window)
  if units < 0 and taken ~= 0 and taken - taken % window ~= at then
    return reset_after(at, used, now, window), at, used, 0
  end
  units = math.max(-MAX_EXACT, math.min(units, MAX_EXACT))
  used = math.max(0, math.min(used + units, MAX_EXACT))
  return reset_after(at, used, now, window), at, used, 0
end

