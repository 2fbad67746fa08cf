-- Several charges as one unit: all are counted or none. KEYS: their counters, all
-- different. ARGV: "take", "peek" or "settle", then for each key its format, cost, time
-- of taking (for "settle") and three parameters. Reply: now, then what follows it in take.lua for each key in turn;
-- empty after "settle".

local mode = ARGV[1]

if mode == 'settle' then
  for i = 1, #KEYS do
    local arg = 6 * i - 4
    local rule = rules[ARGV[arg]]()
    local at, used, extra = rule.read(KEYS[i])
    local reset
    reset, at, used, extra = rule.settle(at, used, extra, now, tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2]),
      tonumber(ARGV[arg + 3]), tonumber(ARGV[arg + 4]), tonumber(ARGV[arg + 5]))
    if reset > 0 then
      rule.write(KEYS[i], ttl(reset), at, used, extra)
    else
      redis.call('DEL', KEYS[i])
    end
  end
  return {}
end

local decide = function(i, cost)
  local arg = 6 * i - 4
  local rule = rules[ARGV[arg]]()
  local at, used, extra = rule.read(KEYS[i])
  local allowed, remaining, reset, retry, delay, new_at, new_used, new_extra =
    rule.step(at, used, extra, now, cost or tonumber(ARGV[arg + 1]),
      tonumber(ARGV[arg + 3]), tonumber(ARGV[arg + 4]), tonumber(ARGV[arg + 5]))
  return {
    rule = rule, allowed = allowed, remaining = remaining, reset = reset, retry = retry, delay = delay,
    before = at, at = new_at, used = new_used, extra = new_extra,
  }
end

local decisions, all_allowed = {}, true
for i = 1, #KEYS do
  decisions[i] = decide(i)
  all_allowed = all_allowed and decisions[i].allowed == 1
end

local reply = { now }
for i = 1, #KEYS do
  local d = decisions[i]
  if not all_allowed and d.allowed == 1 then
    -- It would have passed: it stands as it stood.
    d = decide(i, 0)
    d.allowed, d.retry = 1, 0
  end
  local counted = all_allowed and tonumber(ARGV[6 * i - 3]) > 0
  if mode == 'take' and d.reset > 0 and (counted or d.at < d.before) then
    d.rule.write(KEYS[i], ttl(d.reset), d.at, d.used, d.extra)
  end
  reply[5 * i - 3], reply[5 * i - 2], reply[5 * i - 1] = d.allowed, d.remaining, d.reset
  reply[5 * i], reply[5 * i + 1] = d.retry, d.delay
end
return reply
