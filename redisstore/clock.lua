-- Every script reads the clock here, once, and every expiry is computed here. Times
-- are microseconds, as whole numbers.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- ttl is the milliseconds until the moment that is reset microseconds away, rounded
-- up. Redis counts from the millisecond that now is in.
local ttl = function(reset)
  return math.ceil((now + reset) / 1000) - math.floor(now / 1000)
end

