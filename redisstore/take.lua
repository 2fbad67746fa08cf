-- Independent charges of one rule and one cost. KEYS: their counters, in the order they
-- came, the same one perhaps several times. ARGV: 1 to count what is admitted or 0 to
-- look, cost; the rule's three parameters stand before the chunk.
-- Reply: now; for each key the state it was decided on, three integers; then the
-- numbers of the keys that refuse, from 1 on.

local keys, count, cost = KEYS, ARGV[1] == '1', tonumber(ARGV[2])
local reply, last, refused, refusals = { now, 0, 0, 0 }, 1, nil, 0
for i = 1, #keys do
  local key = keys[i]
  local at, used, extra = read(key)
  local allowed, reset, new_at, new_used, new_extra, seen_at, seen_used, seen_extra = step(at, used, extra, now, cost)
  -- A refusal is stored only when the clock was set back and the stored time gave way.
  if count and reset > 0 and (allowed and cost > 0 or new_at < at) then
    write(key, reset, new_at, new_used, new_extra, at, used, extra)
  end
  reply[last + 1], reply[last + 2], reply[last + 3] = seen_at or at, seen_used or used, seen_extra or extra
  last = last + 3
  if not allowed then
    refused, refusals = refused or {}, refusals + 1
    refused[refusals] = i
  end
end
for i = 1, refusals do
  reply[last + i] = refused[i]
end
return reply
