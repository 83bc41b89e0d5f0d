package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func TestAnUnknownCredentialIsNotTriedAgain(t *testing.T) {
	for _, credential := range []string{"bad", ""} {
		g := newGateway(t, false, unhurried)
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
	g := newGateway(t, false, unhurried)
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
	g := newGateway(t, false, unhurried)
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
	g := newGateway(t, false, unhurried)
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
