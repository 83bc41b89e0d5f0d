package server

import (
	"net"
	"strings"
	"testing"
)

func TestListenRefusesWhatIsUnsafeOrTaken(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		name, want string
		cfg        Config
	}{
		{"plain text beyond loopback", "without TLS", Config{Listen: "0.0.0.0:0"}},
		{"plain text on every address", "without TLS", Config{Listen: ":0"}},
		{"a port in use", "in use", Config{Listen: taken.Addr().String()}},
		{"no port", "host:port", Config{Listen: "localhost"}},
		{"a certificate without a key", "together", Config{Listen: "127.0.0.1:0", TLSCertFile: "x"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			listener, _, err := listen(t.Context(), test.cfg)
			if err == nil {
				_ = listener.Close()
				t.Fatal("it listens")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %q does not say %q", err, test.want)
			}
		})
	}
}

func TestDataDirectoryHasOneServer(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if _, err := lockDir(dir); err == nil || !strings.Contains(err.Error(), "another server") {
		t.Errorf("second lock: %v", err)
	}
}
