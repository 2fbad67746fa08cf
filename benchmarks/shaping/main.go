// Command shaping measures a policy with Action: Delay beside nginx's limit_req: the same
// arrivals to both, and when they reach the backend behind. It starts a redis-server, an
// nginx where there is one, a backend and everything else itself, on loopback ports, and
// prints Markdown.
//
//	cd benchmarks && go run ./shaping
//	go run ./shaping -plot ../docs/img    # draws arrivals and departures, and no more
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/seed-601ed181/ratelimit/internal/redistest"
)

func main() {
	rounds := flag.Int("rounds", 3, "how often to measure each; the figures are medians")
	plot := flag.String("plot", "", "directory to draw the plot of arrivals and departures in, instead of measuring")
	member := flag.String("member", "", "be one instance of this library in front of the backend at this URL, until the input is closed")
	redisAddr := flag.String("redis", "", "of a member: the Redis of all instances")
	rule := flag.String("bucket", "", "of a member: capacity, rate and burst, such as 101,50,0")
	flag.Parse()
	var err error
	switch {
	case *member != "":
		err = serveMember(*member, *redisAddr, *rule)
	case *plot != "":
		err = drawShaping(*plot)
	default:
		err = compare(os.Stdout, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "shaping:", err)
		os.Exit(1)
	}
}

const (
	rate  = 50  // requests a second
	burst = 100 // that may wait beside the one that is served
)

// contestant is one or more proxies in front of the backend.
type contestant struct {
	name  string
	start func(b *backend, redisAddr string) (proxy, error)
	fleet int
}

// proxy is one process that delays requests.
type proxy interface {
	url() string
	pids() []int
	stop()
}

var (
	nginxQueue = contestant{fmt.Sprintf("nginx, burst=%d", burst), nginxWith(rate, burst, ""), 1}
	nginxDelay = contestant{fmt.Sprintf("nginx, burst=%d delay=20", burst), nginxWith(rate, burst, "delay=20"), 1}
	ours       = contestant{fmt.Sprintf("Delay, Capacity: %d", burst+1), memberWith(rate, burst+1, 0), 1}
	oursBurst  = contestant{fmt.Sprintf("Delay, Capacity: %d, Burst: 20", burst+1), memberWith(rate, burst+1, 20), 1}
	twoNginx   = contestant{"two nginx", nginxWith(rate, burst, ""), 2}
	twoOurs    = contestant{"two instances with Delay", memberWith(rate, burst+1, 0), 2}
)

func compare(out io.Writer, rounds int) error {
	version, err := nginxVersion()
	if err != nil {
		return err
	}
	server, err := redistest.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	fmt.Fprintf(out, "%s. %d requests a second; 120 requests at once, then %d a second for 5 s. Medians of %d rounds.\n\n",
		version, rate, streamRate, rounds)
	overloads, err := measure(rounds, server.Addr, overload, []contestant{nginxQueue, nginxDelay, ours, oursBurst, twoNginx, twoOurs})
	if err != nil {
		return err
	}
	overloads.evenness(out)
	fmt.Fprintf(out, "\n%d requests at once; after 0.5 s half of those who wait leave, and as many new ones come.\n\n", burst)
	leavers, err := measure(rounds, server.Addr, leaving, []contestant{nginxQueue, ours, twoOurs})
	if err != nil {
		return err
	}
	leavers.turns(out)
	fmt.Fprintf(out, "\n%d requests held at once.\n\n", heldRequests)
	return price(out, rounds, server.Addr, []contestant{
		{"nginx", nginxWith(holdRate, heldRequests, ""), 1},
		{"this library, with net/http and a reverse proxy", memberWith(holdRate, heldRequests+1, 0), 1},
	})
}
