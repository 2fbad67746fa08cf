package ratelimit

import "fmt"

// ConfigError is one mistake in a [Config]. [New] returns all of them joined; get at
// each with errors.As or by unwrapping.
type ConfigError struct {
	// Path is where the mistake is: Policies["export"].Limits[0].Refill.
	Path string
	// Value is what stands there.
	Value any
	// Reason says what it must be.
	Reason string
}

func (e *ConfigError) Error() string {
	switch value := e.Value.(type) {
	case nil:
		return fmt.Sprintf("ratelimit: %s %s", e.Path, e.Reason)
	case string:
		return fmt.Sprintf("ratelimit: %s %s, got %q", e.Path, e.Reason, value)
	default:
		return fmt.Sprintf("ratelimit: %s %s, got %v", e.Path, e.Reason, value)
	}
}
