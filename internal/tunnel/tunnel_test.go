package tunnel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const goodCredential = "good"

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// gateway is the accepting end.
type gateway struct {
	server *httptest.Server
	conns  chan *Conn
}

func newGateway(t *testing.T, secure bool, keepalive Keepalive) *gateway {
	t.Helper()
	g := &gateway{conns: make(chan *Conn, 16)}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	handler := Handler(HandlerOptions[string]{
		Authenticate: func(_ context.Context, credential string) (string, error) {
			switch credential {
			case goodCredential:
				return "runner-1", nil
			case "broken":
				return "", errors.New("the store is down")
			}
			return "", fmt.Errorf("look up: %w", ErrUnauthorized)
		},
		Serve: func(_ context.Context, identity string, conn *Conn) {
			serving.Add(1)
			defer serving.Done()
			if identity != "runner-1" {
				t.Errorf("identity = %q", identity)
			}
			g.conns <- conn
			select {
			case <-conn.Done():
			case <-ctx.Done():
			}
		},
		Keepalive: keepalive,
		Logger:    slog.New(slog.DiscardHandler),
	})
	g.server = httptest.NewUnstartedServer(handler)
	if secure {
		g.server.StartTLS()
	} else {
		g.server.Start()
	}
	t.Cleanup(func() {
		cancel()
		serving.Wait()
		g.server.Close()
	})
	return g
}

// options are those of a runner that trusts this gateway.
func (g *gateway) options(handler http.Handler) Options {
	opts := Options{
		ServerURL:  g.server.URL,
		Credential: goodCredential,
		Handler:    handler,
		Logger:     slog.New(slog.DiscardHandler),
	}
	if g.server.TLS != nil {
		transport, _ := g.server.Client().Transport.(*http.Transport)
		opts.TLSConfig = &tls.Config{RootCAs: transport.TLSClientConfig.RootCAs, MinVersion: tls.VersionTLS12}
	}
	return opts
}

// start serves in the background until the test ends.
func start(t *testing.T, opts Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := Serve(ctx, opts); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func request(ctx context.Context, t *testing.T, path string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runner"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// mustAnswer has any request answered.
func mustAnswer(t *testing.T, conn *Conn) {
	t.Helper()
	resp, err := conn.RoundTrip(request(t.Context(), t, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if !conn.Usable() {
		t.Error("a connection that answers is not usable")
	}
}

func overTCPAndTLS(t *testing.T, test func(t *testing.T, secure bool)) {
	t.Helper()
	t.Run("TCP", func(t *testing.T) { test(t, false) })
	t.Run("TLS", func(t *testing.T) { test(t, true) })
}

func TestRequestsFlowToTheRunner(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		g := newGateway(t, secure, Keepalive{})
		start(t, g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %s", r.URL.Path, body)
		})))
		conn := receive(t, g.conns)
		resp, err := conn.RoundTrip(request(t.Context(), t, "/hello", strings.NewReader("you")))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "/hello you" {
			t.Errorf("body = %q, %v", body, err)
		}
	})
}

// digest hashes size bytes of a stream of its own as they are read.
type digest struct {
	io.Reader
	hash.Hash
}

func newDigest(seed byte, size int64) *digest {
	h := sha256.New()
	source := rand.NewChaCha8([32]byte{seed})
	return &digest{Reader: io.TeeReader(io.LimitReader(source, size), h), Hash: h}
}

func TestLargeStreamsPassInBothDirectionsAtOnce(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		const size = 32 << 20
		down, received := newDigest(1, size), sha256.New()
		g := newGateway(t, secure, Keepalive{})
		start(t, g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			var group errgroup.Group
			group.Go(func() error {
				_, err := io.Copy(received, r.Body)
				return err
			})
			if _, err := io.Copy(w, down); err != nil {
				t.Errorf("send down: %v", err)
			}
			if err := group.Wait(); err != nil {
				t.Errorf("receive up: %v", err)
			}
		})))
		conn := receive(t, g.conns)
		up := newDigest(2, size)
		resp, err := conn.RoundTrip(request(t.Context(), t, "/", io.NopCloser(up)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got := sha256.New()
		if n, err := io.Copy(got, resp.Body); err != nil || n != size {
			t.Fatalf("received %d bytes, %v", n, err)
		}
		if !bytes.Equal(got.Sum(nil), down.Sum(nil)) {
			t.Error("what came down differs from what was sent")
		}
		if !bytes.Equal(received.Sum(nil), up.Sum(nil)) {
			t.Error("what came up differs from what was sent")
		}
	})
}

func TestASlowReaderHoldsABoundedAmountAndNobodyElseUp(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		const chunk = 16 << 10
		var written atomic.Int64
		g := newGateway(t, secure, Keepalive{})
		start(t, g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			data := make([]byte, chunk)
			if r.URL.Path == "/endless" {
				for {
					if _, err := w.Write(data); err != nil {
						return
					}
					written.Add(chunk)
				}
			}
			for range (32 << 20) / chunk {
				_, _ = w.Write(data)
			}
		})))
		conn := receive(t, g.conns)
		stuck, err := conn.RoundTrip(request(t.Context(), t, "/endless", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer stuck.Body.Close()
		for range 4 {
			resp, err := conn.RoundTrip(request(t.Context(), t, "/other", nil))
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != 32<<20 {
				t.Fatalf("the other stream carried %d bytes, %v", n, err)
			}
			_ = resp.Body.Close()
		}
		if got := written.Load(); got > streamWindow+4*chunk {
			t.Errorf("the stuck stream took %d bytes, more than its window of %d", got, streamWindow)
		}
	})
}

func TestASlowHandlerHoldsTheSenderBack(t *testing.T) {
	const chunk = 16 << 10
	release := make(chan struct{})
	g := newGateway(t, false, Keepalive{})
	start(t, g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stuck" {
			_ = http.NewResponseController(w).Flush()
			<-release
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})))
	conn := receive(t, g.conns)
	var sent atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	resp, err := conn.RoundTrip(request(ctx, t, "/stuck", readerFunc(func(p []byte) (int, error) {
		n := min(len(p), chunk)
		sent.Add(int64(n))
		return n, nil
	})))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	other, err := conn.RoundTrip(request(t.Context(), t, "/other", io.LimitReader(rand.NewChaCha8([32]byte{}), 32<<20)))
	if err != nil {
		t.Fatal(err)
	}
	_ = other.Body.Close()
	if got := sent.Load(); got > streamWindow+2*frameSize {
		t.Errorf("%d bytes were taken from the sender, more than the window of %d", got, streamWindow)
	}
	close(release)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestCancellingARequestEndsItsHandlerAndNothingElse(t *testing.T) {
	ended := make(chan error, 1)
	started := make(chan struct{})
	g := newGateway(t, false, Keepalive{})
	start(t, g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/long" {
			return
		}
		_ = http.NewResponseController(w).Flush()
		close(started)
		<-r.Context().Done()
		ended <- r.Context().Err()
	})))
	conn := receive(t, g.conns)
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := conn.RoundTrip(request(ctx, t, "/long", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-started
	cancel()
	if err := receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the handler saw %v", err)
	}
	if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("the caller saw %v", err)
	}
	other, err := conn.RoundTrip(request(t.Context(), t, "/short", nil))
	if err != nil {
		t.Fatalf("the connection has suffered: %v", err)
	}
	_ = other.Body.Close()
}

func TestCancellingAStreamThatIsOpenBothWaysEndsItsHandler(t *testing.T) {
	ended := make(chan error, 1)
	g := newGateway(t, false, Keepalive{})
	start(t, g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, err := io.ReadAll(r.Body)
		ended <- err
	})))
	conn := receive(t, g.conns)
	ctx, cancel := context.WithCancel(t.Context())
	body, input := io.Pipe()
	defer input.Close()
	resp, err := conn.RoundTrip(request(ctx, t, "/", body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cancel()
	if receive(t, ended) == nil {
		t.Error("the handler took the cancellation for the end of the input")
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the caller took the cancellation for the end of the output")
	}
}

func TestThousandsOfStreamsAreOpenAtOnce(t *testing.T) {
	const streams = 3000
	release := make(chan struct{})
	g := newGateway(t, false, Keepalive{})
	start(t, g.options(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-release
		_, _ = io.Copy(w, r.Body)
	})))
	conn := receive(t, g.conns)
	var open atomic.Int64
	var group errgroup.Group
	for i := range streams {
		group.Go(func() error {
			want := fmt.Sprintf("stream %d", i)
			resp, err := conn.RoundTrip(request(t.Context(), t, "/", strings.NewReader(want)))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if open.Add(1) == streams {
				close(release)
			}
			got, err := io.ReadAll(resp.Body)
			if err != nil || string(got) != want {
				return fmt.Errorf("got %q, %w", got, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestClosingTheConnectionEndsEveryStreamAndTheRunnerComesBack(t *testing.T) {
	ended := make(chan struct{}, 2)
	g := newGateway(t, false, Keepalive{})
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
	keepalive := Keepalive{Silence: 50 * time.Millisecond, PingTimeout: 200 * time.Millisecond}
	g := newGateway(t, false, keepalive)
	relay := newRelay(t, g.server.Listener.Addr().String())
	opts := g.options(http.NotFoundHandler())
	opts.ServerURL = "http://" + relay.Addr().String()
	opts.Keepalive = keepalive
	lost := make(chan error, 16)
	opts.Disconnected = func(err error) { lost <- err }
	start(t, opts)
	conn := receive(t, g.conns)
	mustAnswer(t, conn)
	relay.frozen.Store(true)
	receive(t, conn.Done())
	receive(t, lost)
	relay.frozen.Store(false)
	again := receive(t, g.conns)
	mustAnswer(t, again)
}

func TestAnUnknownCredentialIsNotTriedAgain(t *testing.T) {
	for _, credential := range []string{"bad", ""} {
		g := newGateway(t, false, Keepalive{})
		opts := g.options(http.NotFoundHandler())
		opts.Credential = credential
		opts.Sleep = func(context.Context, time.Duration) error {
			t.Error("it tried again")
			return errors.New("stop")
		}
		if err := Serve(t.Context(), opts); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("credential %q: %v", credential, err)
		}
	}
}

func TestPausesGrowAndAreShortenedAtRandom(t *testing.T) {
	g := newGateway(t, false, Keepalive{})
	opts := g.options(http.NotFoundHandler())
	opts.Credential = "broken"
	draws := []float64{0, 0.5, 0.999, 0, 0, 0, 0, 0, 0}
	opts.Random = func() float64 {
		draw := draws[0]
		draws = draws[1:]
		return draw
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var slept []time.Duration
	opts.Sleep = func(_ context.Context, d time.Duration) error {
		slept = append(slept, d.Round(time.Millisecond))
		if len(draws) == 0 {
			cancel()
		}
		return ctx.Err()
	}
	if err := Serve(ctx, opts); err != nil {
		t.Fatal(err)
	}
	want := []time.Duration{
		200 * time.Millisecond, 300 * time.Millisecond, 400 * time.Millisecond, 1600 * time.Millisecond,
		3200 * time.Millisecond, 6400 * time.Millisecond, 12800 * time.Millisecond, 15 * time.Second, 15 * time.Second,
	}
	if fmt.Sprint(slept) != fmt.Sprint(want) {
		t.Errorf("paused for %v, want %v", slept, want)
	}
}

func TestRefusalsAreTyped(t *testing.T) {
	g := newGateway(t, false, Keepalive{})
	opts := g.options(http.NotFoundHandler())
	opts.Credential = "broken"
	_, err := dial(t.Context(), opts)
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("err = %v", err)
	}
	opts.ServerURL = "ftp://127.0.0.1"
	if _, err := dial(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "http://") {
		t.Errorf("err = %v", err)
	}
}

func TestOtherRequestsAreToldWhatTheAddressIsFor(t *testing.T) {
	g := newGateway(t, false, Keepalive{})
	resp, err := g.server.Client().Get(g.server.URL + Path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Upgrade") != Protocol {
		t.Errorf("status %d, Upgrade %q", resp.StatusCode, resp.Header.Get("Upgrade"))
	}
	g.server.CloseClientConnections()
	g.server.Client().CloseIdleConnections()
}

func TestRunningRequestsFinishWhenTheRunnerLeaves(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	g := newGateway(t, false, Keepalive{})
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
	g := newGateway(t, false, Keepalive{})
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

func TestDiallingEndsWithItsContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		buffer := make([]byte, 1024)
		if _, err := conn.Read(buffer); err != nil {
			return err
		}
		cancel()
		_, _ = io.Copy(io.Discard, conn)
		return nil
	})
	_, err = dial(ctx, Options{ServerURL: "http://" + listener.Addr().String(), Credential: "x"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}
