-- Mirrors sliding_window_counter.go. Times and window in microseconds.
-- State, format sw2: at (start of the current window), used, previous.

local function roll(at, used, previous, now)
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

local function reset_after(at, used, previous, now)
  if used > 0 then
    return at + 2 * window - now
  elseif previous > 0 then
    return at + window - now
  end
  return 0
end

local function step(at, used, previous, now, cost)
  local clock = now
  if at ~= now - now % window then -- else it need not be called
    at, used, previous, clock = roll(at, used, previous, now)
  end
  local elapsed = clock - at
  local overlap = previous * (window - elapsed)
  local room = limit - used

  local allowed = cost <= room and overlap <= (room - cost) * window
  if allowed then
    used = used + cost
  end
  return allowed, reset_after(at, used, previous, now), at, used, previous
end

local function settle(at, used, previous, now, units, taken)
  at, used, previous = roll(at, used, previous, now)
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
  return reset_after(at, used, previous, now), at, used, previous
end

