-- take_sliding_window_counter.lua.golden by hand in one piece, without functions: what
-- the split into read, step and write costs is measured against it.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cost, limit, window = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local at, used, previous = 0, 0, 0
local stored = redis.call('GET', KEYS[1])
if stored then
  local a, u, p = string.match(stored, '^(%d+):(%d+):(%d+)$')
  if a then
    at, used, previous = tonumber(a), tonumber(u), tonumber(p)
  end
end

local before, clock = at, now
local start = now - now % window
if start > at then
  if start - at == window then
    previous = used
  else
    previous = 0
  end
  at, used = start, 0
elseif start < at then
  if at - now > 2 * window + 1000000 then
    at = start
  else
    clock = at
  end
end

local overlap = previous * (window - (clock - at))
local room = limit - used
local allowed, retry = 0, 0
if cost > limit then
  retry = -1
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
local reset = 0
if used > 0 then
  reset = at + 2 * window - now
elseif previous > 0 then
  reset = at + window - now
end

if ARGV[1] == '1' and reset > 0 and (allowed == 1 and cost > 0 or at < before) then
  redis.call('SET', KEYS[1], string.format('%.0f:%.0f:%.0f', at, used, previous), 'PX',
    math.ceil((now + reset) / 1000) - math.floor(now / 1000))
end
return { now, allowed, remaining, reset, retry, 0 }
