-- Several charges as one unit: all are counted or none. KEYS: their counters, all
-- different. ARGV: "take" or "peek", then for each key its format, cost and the rule's
-- three parameters. Reply as in take.lua.

local count = ARGV[1] == 'take'
local charges, all_allowed = {}, true
local reply, refused = { now }, {}
for i = 1, #KEYS do
  local arg = 5 * i - 3
  local cost = tonumber(ARGV[arg + 1])
  local rule = rules[ARGV[arg]](tonumber(ARGV[arg + 2]), tonumber(ARGV[arg + 3]), tonumber(ARGV[arg + 4]))
  local at, used, extra = rule.read(KEYS[i])
  local allowed, reset, new_at, new_used, new_extra, seen_at, seen_used, seen_extra = rule.step(at, used, extra, now, cost)
  charges[i] = {
    rule = rule, counts = cost > 0, reset = reset, was_at = at, was_used = used, was_extra = extra,
    at = new_at, used = new_used, extra = new_extra,
  }
  reply[3 * i - 1], reply[3 * i], reply[3 * i + 1] = seen_at or at, seen_used or used, seen_extra or extra
  if not allowed then
    all_allowed = false
    refused[#refused + 1] = i
  end
end

for i = 1, #KEYS do
  local c = charges[i]
  local counted = all_allowed and c.counts
  if count and not counted and c.at < c.was_at then
    -- The clock was set back and the stored time gave way: that is stored, the cost not.
    local _
    _, c.reset, c.at, c.used, c.extra = c.rule.step(c.was_at, c.was_used, c.was_extra, now, 0)
    counted = true
  end
  if count and counted and c.reset > 0 then
    c.rule.write(KEYS[i], c.reset, c.at, c.used, c.extra, c.was_at, c.was_used, c.was_extra)
  end
end

for i = 1, #refused do
  reply[#reply + 1] = refused[i]
end
return reply
