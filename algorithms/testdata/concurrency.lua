-- A sorted set for the concurrency chunk in process: an array of times.

local function open(times)
  local held = {}
  function held.count()
    return #times
  end
  function held.older(time)
    local n = 0
    for _, taken in ipairs(times) do
      if taken <= time then
        n = n + 1
      end
    end
    return n
  end
  function held.taken(rank)
    return times[rank < 0 and #times or rank + 1] or 0
  end
  return held.taken(-1), held
end

local function change(times, c)
  for _ = c.first or 0, c.last or -1 do
    table.remove(times, c.first + 1)
  end
  while times[1] and (c.clear or c.floor and times[1] <= c.floor) do
    table.remove(times, 1)
  end
  local _, held = open(times)
  if c.add > 0 and held.older(c.at) - held.older(c.at - 1) ~= c.number then
    error('a number would come twice')
  end
  for _ = 1, c.add do
    times[#times + 1] = c.at
  end
end

return open, change
