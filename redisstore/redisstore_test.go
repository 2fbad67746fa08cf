package redisstore

import (
	"testing"

	"github.com/seed-601ed181/ratelimit/storetest"
)

func TestStoreOnMiniredis(t *testing.T) { storetest.Run(t, openMini) }

func TestStoreOnRedis(t *testing.T) {
	realRedis(t)
	storetest.Run(t, openReal)
}
