-- One charge. KEYS[1]: its counter. ARGV: 1 to count what is admitted or 0 to look,
-- cost, the rule's three parameters.
-- Reply: now, allowed (1, 0), remaining, reset, retry (-1: never), delay.

local cost = tonumber(ARGV[2])
local at, used, extra = read(KEYS[1])
local allowed, remaining, reset, retry, delay, new_at, new_used, new_extra =
  step(at, used, extra, now, cost, tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))

-- A refusal is stored only when the clock was set back and the stored time gave way.
if ARGV[1] == '1' and reset > 0 and (allowed == 1 and cost > 0 or new_at < at) then
  write(KEYS[1], ttl(reset), new_at, new_used, new_extra)
end
return { now, allowed, remaining, reset, retry, delay }
