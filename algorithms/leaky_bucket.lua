-- Mirrors leaky_bucket.go: the token bucket's step above, and the delay until the
-- queue in front of this request has drained. State, format lb1: as tb1.

local pour = step

local function step(at, used, stored_unit, now, cost, capacity, refill, unit)
  local drained_at, queued = drain(at, used, stored_unit, now, capacity, refill, unit)
  local allowed, remaining, reset, retry, delay, new_at, new_used, new_unit =
    pour(at, used, stored_unit, now, cost, capacity, refill, unit)
  if allowed == 1 then
    delay = reset_after(drained_at, queued, now, refill)
  end
  return allowed, remaining, reset, retry, delay, new_at, new_used, new_unit
end

