-- The constants of algorithm.go, in scope of every chunk.
local CLOCK_SLACK = 1000000
local MAX_EXACT = 9007199254740992
local MAX_LOG = 1000000
