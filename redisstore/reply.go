package redisstore

import (
	"github.com/seed-601ed181/ratelimit/algorithms"
)

const maxExact = 1 << 53 // no number of a script is above it

// read makes the decisions of a reply: the script has decided, and tells the states it
// decided on. The rules' own steps give the rest of the answer, and have to agree.
func read(reply []int64, charges []algorithms.Charge, decisions []algorithms.Decision, states []algorithms.State) error {
	n := len(charges)
	if len(reply) < 1+3*n || reply[0] <= 0 {
		return errReply(reply, n)
	}
	for _, number := range reply {
		if number < 0 || number > maxExact {
			return errReply(reply, n)
		}
	}
	now, refused := reply[0], reply[1+3*n:]
	unit := len(refused) == 0
	for i := range charges {
		told := reply[1+3*i:]
		state := charges[i].Algorithm.Restore(told[0], told[1], told[2], charges[i].Cost)
		_, d := charges[i].Algorithm.Step(state, now, charges[i].Cost)
		if !d.Allowed {
			if len(refused) == 0 || refused[0] != int64(i+1) {
				return errReply(reply, n)
			}
			refused = refused[1:]
		} else if !unit {
			// It would have passed: it stands as it stood.
			_, d = charges[i].Algorithm.Step(state, now, 0)
			d.Allowed, d.RetryAfter = true, 0
		}
		decisions[i] = d
		if states != nil {
			states[i] = state
		}
	}
	if len(refused) > 0 {
		return errReply(reply, n)
	}
	return nil
}
