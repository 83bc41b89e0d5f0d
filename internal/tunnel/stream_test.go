package tunnel

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

func TestRequestsFlowToTheRunner(t *testing.T) {
	overTCPAndTLS(t, func(t *testing.T, secure bool) {
		g := newGateway(t, secure, unhurried)
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
		g := newGateway(t, secure, unhurried)
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
		g := newGateway(t, secure, unhurried)
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
	g := newGateway(t, false, unhurried)
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
	g := newGateway(t, false, unhurried)
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
	g := newGateway(t, false, unhurried)
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
	g := newGateway(t, false, unhurried)
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
