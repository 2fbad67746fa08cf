-- Mirrors sliding_window_counter.go. Times and window in microseconds.
-- State, format sw1: at (start of the current window), used, previous.

local function roll(at, used, previous, now, window)
  local start = now - now % window
  if start == at then
    return at, used, previous, now
  elseif start > at then
    if start - at == window then
      return start, 0, used, now
    end
    return start, 0, 0, now
  elseif at - now > 2 * window + CLOCK_SLACK then
    return start, used, previous, now
  end
  return at, used, previous, at
end

local function reset_after(at, used, previous, now, window)
  if used > 0 then
    return at + 2 * window - now
  elseif previous > 0 then
    return at + window - now
  end
  return 0
end

local function step(at, used, previous, now, cost, limit, window)
  local clock
  at, used, previous, clock = roll(at, used, previous, now, window)
  local elapsed = clock - at
  local overlap = previous * (window - elapsed)
  local room = limit - used

  local allowed, retry = 0, 0
  if cost > limit then
    retry = NEVER
  elseif cost > room then
    retry = at + 2 * window - math.floor((limit - cost) * window / used) - now
  elseif overlap > (room - cost) * window then
    retry = at + window - math.floor((room - cost) * window / previous) - now
  else
    allowed = 1
    used = used + cost
    room = room - cost
  end

  local remaining = 0
  if room > 0 and room * window > overlap then
    remaining = math.floor((room * window - overlap) / window)
  end
  return allowed, remaining, reset_after(at, used, previous, now, window), retry, 0, at, used, previous
end

local function settle(at, used, previous, now, units, taken, limit, window)
  at, used, previous = roll(at, used, previous, now, window)
  if units > 0 then
    used = math.min(used + math.min(units, MAX_EXACT), math.floor(MAX_EXACT / window))
  else
    units = math.max(units, -MAX_EXACT)
    local start = taken - taken % window
    if taken == 0 then
      previous = math.max(0, previous + math.min(0, used + units))
      used = math.max(0, used + units)
    elseif start == at then
      used = math.max(0, used + units)
    elseif start == at - window then
      previous = math.max(0, previous + units)
    end
  end
  return reset_after(at, used, previous, now, window), at, used, previous
end

