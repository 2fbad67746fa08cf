module github.com/seed-601ed181/ratelimit/internal/clienttest

go 1.26.0

require (
	github.com/google/go-github/v89 v89.0.0
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/seed-601ed181/ratelimit v0.0.0
)

require (
	github.com/felixge/httpsnoop v1.1.0 // indirect
	github.com/google/go-querystring v1.2.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
)

replace github.com/seed-601ed181/ratelimit => ../..
