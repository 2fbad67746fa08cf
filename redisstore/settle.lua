-- Changes counters after the fact. KEYS: the counters, all different. ARGV: for each key
-- its format, units, time of taking (0: unknown) and the rule's three parameters. The
-- reply is empty.

for i = 1, #KEYS do
  local arg = 6 * i - 5
  local rule = rules[ARGV[arg]](tonumber(ARGV[arg + 3]), tonumber(ARGV[arg + 4]), tonumber(ARGV[arg + 5]))
  local was_at, was_used, was_extra = rule.read(KEYS[i])
  local reset, at, used, extra = rule.settle(was_at, was_used, was_extra, now, tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2]))
  if reset > 0 then
    rule.write(KEYS[i], reset, at, used, extra, 0, 0, 0)
  else
    redis.call('DEL', KEYS[i])
  end
end
return {}
