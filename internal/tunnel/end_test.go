package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func TestClosingTheConnectionEndsEveryStreamAndTheRunnerComesBack(t *testing.T) {
	ended := make(chan struct{}, 2)
	g := newGateway(t, false, unhurried)
	opts := g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		ended <- struct{}{}
	}))
	var slept []time.Duration
	opts.Sleep = func(_ context.Context, d time.Duration) error {
		slept = append(slept, d)
		return nil
	}
	start(t, opts)
	conn := receive(t, g.conns)
	var bodies []io.ReadCloser
	for range 2 {
		resp, err := conn.RoundTrip(request(t.Context(), t, "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, resp.Body)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	receive(t, conn.Done())
	for _, body := range bodies {
		if _, err := io.ReadAll(body); err == nil {
			t.Error("a stream ended as if all were well")
		}
		_ = body.Close()
		receive(t, ended)
	}
	if conn.Usable() {
		t.Error("a closed connection is usable")
	}
	again := receive(t, g.conns)
	if !again.Usable() {
		t.Error("the new connection is not usable")
	}
	if len(slept) != 1 || slept[0] < firstPause/2 || slept[0] > firstPause {
		t.Errorf("paused for %v", slept)
	}
}

// relay passes bytes on until it is frozen; it then keeps both connections
// open and says nothing, as a peer does whose machine has lost power.
type relay struct {
	net.Listener
	frozen atomic.Bool
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: listener}
	var group errgroup.Group
	var mu sync.Mutex
	var conns []net.Conn
	group.Go(func() error {
		for {
			in, err := listener.Accept()
			if err != nil {
				return nil
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				return err
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			group.Go(func() error { return r.pass(in, out) })
			group.Go(func() error { return r.pass(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		_ = group.Wait()
	})
	return r
}

func (r *relay) pass(from, to net.Conn) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return nil
		}
		if r.frozen.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return nil
		}
	}
}

func TestBothEndsNoticeAHalfOpenConnection(t *testing.T) {
	keepalive := Keepalive{Silence: 50 * time.Millisecond, PingTimeout: time.Second}
	g := newGateway(t, false, keepalive)
	relay := newRelay(t, g.server.Listener.Addr().String())
	opts := g.options(http.NotFoundHandler())
	opts.ServerURL = "http://" + relay.Addr().String()
	opts.Keepalive = keepalive
	lost := make(chan error, 16)
	opts.Disconnected = func(err error) { lost <- err }
	start(t, opts)
	conn := awaitAnswer(t, g)
	for len(lost) > 0 {
		<-lost
	}
	relay.frozen.Store(true)
	receive(t, conn.Done())
	receive(t, lost)
	relay.frozen.Store(false)
	awaitAnswer(t, g)
}

// awaitAnswer finds a connection on which requests are answered. On a machine
// that is slow enough, others may be given up before.
func awaitAnswer(t *testing.T, g *gateway) *Conn {
	t.Helper()
	for {
		conn := receive(t, g.conns)
		resp, err := conn.RoundTrip(request(t.Context(), t, "/", nil))
		if err == nil {
			_ = resp.Body.Close()
			return conn
		}
	}
}

func TestRunningRequestsFinishWhenTheRunnerLeaves(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	g := newGateway(t, false, unhurried)
	opts := g.options(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		close(started)
		<-release
		_, _ = io.WriteString(w, "finished")
	}))
	opts.DrainTimeout = patience
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	var group errgroup.Group
	group.Go(func() error {
		served <- Serve(ctx, opts)
		return nil
	})
	conn := receive(t, g.conns)
	resp, err := conn.RoundTrip(request(t.Context(), t, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-started
	cancel()
	for conn.Usable() {
		runtime.Gosched()
	}
	if _, err := conn.RoundTrip(request(t.Context(), t, "/", nil)); err == nil {
		t.Error("a runner that leaves took a new request")
	}
	close(release)
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "finished" {
		t.Errorf("body = %q, %v", body, err)
	}
	if err := receive(t, served); err != nil {
		t.Errorf("Serve: %v", err)
	}
	_ = group.Wait()
}

func TestDrainingEnds(t *testing.T) {
	started := make(chan struct{})
	g := newGateway(t, false, unhurried)
	opts := g.options(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(started)
		<-r.Context().Done()
	}))
	opts.DrainTimeout = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return Serve(ctx, opts) })
	conn := receive(t, g.conns)
	group.Go(func() error {
		resp, err := conn.RoundTrip(request(t.Context(), t, "/", nil))
		if err == nil {
			_ = resp.Body.Close()
			return errors.New("the endless request was answered")
		}
		return nil
	})
	<-started
	cancel()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
