-- A sorted set for the log chunk in process: an array of {at, total, cost}.

local function open(entries)
  local log = {}
  function log.count()
    return #entries
  end
  function log.older(floor)
    local n = 0
    for _, entry in ipairs(entries) do
      if entry.at <= floor then
        n = n + 1
      end
    end
    return n
  end
  function log.entry(rank)
    local entry = entries[rank < 0 and #entries or rank + 1]
    if not entry then
      return 0, 0, 0
    end
    return entry.at, entry.total, entry.cost
  end
  local at, total = log.entry(-1)
  log.total = total
  return at, log
end

local function change(entries, c)
  while c.keep and #entries > c.keep do
    table.remove(entries)
  end
  while entries[1] and (c.clear or c.floor and entries[1].at <= c.floor) do
    table.remove(entries, 1)
  end
  for _, entry in ipairs(c) do
    entries[#entries + 1] = { at = entry.at, total = entry.total, cost = entry.cost }
  end
end

return open, change
