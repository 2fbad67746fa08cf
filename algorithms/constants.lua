-- In scope of every chunk: the constants of algorithm.go, and what to do with errors.
local CLOCK_SLACK = 1000000
local MAX_EXACT = 9007199254740992
local MAX_LOG = 1000000

-- raise is for what a read came to that is no value. A key of another type is a counter
-- never seen; any other error, such as a right that is missing, has to surface.
local function raise(reply)
  if reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) then
    error(reply.err, 0)
  end
end
