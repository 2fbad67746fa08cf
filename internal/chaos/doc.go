// Package chaos breaks Redis while requests are served, and measures what they notice:
// killed, stopped, restarted, cut off, failed over and resharded servers. It is a module
// of its own, so that nobody who uses the limiter gets the proxy it needs. It takes
// minutes and runs only when asked:
//
//	go test -tags chaos -v -timeout 10m ./...
package chaos
