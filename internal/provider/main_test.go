package provider_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	var ignored []goleak.Option
	if os.Getenv("SANDBAR_TEST_ENDPOINT") != "" {
		// The fake closes its connections; a real server leaves idle ones open, and
		// Terraform ends the provider without closing them.
		ignored = append(ignored,
			goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
	}
	goleak.VerifyTestMain(m, ignored...)
}
