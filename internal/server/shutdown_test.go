package server

import (
	"context"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// patience is how long something may take that is bound to come.
const patience = 30 * time.Second

// shortGrace leaves streams half a second.
func shortGrace(cfg *Config) { cfg.ShutdownGrace = time.Second }

// longGrace is longer than a test takes.
func longGrace(cfg *Config) { cfg.ShutdownGrace = 10 * time.Minute }

func TestHealthIsServingForEachServiceAndForAll(t *testing.T) {
	w, _ := talk(t, nil)
	health := grpchealth.NewClient(http2(t, &http.Transport{}), w.URL(), connect.WithGRPC())
	for _, service := range []string{"", sandboxv1connect.SandboxServiceName, sandboxv1connect.RunnerManagementServiceName} {
		if got, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: service}); err != nil || got.Status != grpchealth.StatusServing {
			t.Errorf("%q: %v, %v", service, got, err)
		}
	}
	if _, err := health.Check(t.Context(), &grpchealth.CheckRequest{Service: "nobody.v1.Service"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("an unknown service: %v", err)
	}
}

// A request that is under way shows the order: it ends only when the test lets
// it, and health has been told before.
func TestHealthIsNotServingBeforeRequestsHaveEnded(t *testing.T) {
	w, g := talk(t, longGrace)
	client := http2(t, &http.Transport{})
	health := grpchealth.NewClient(client, w.URL(), connect.WithGRPC())
	// The server waits for watches, too: they end as those of a client do that
	// has been told.
	watching, stopWatching := context.WithCancel(t.Context())
	defer stopWatching()
	watches := map[string]<-chan grpchealth.WatchEvent{}
	for _, service := range []string{"", sandboxv1connect.SandboxServiceName} {
		watches[service] = health.Watch(watching, &grpchealth.CheckRequest{Service: service})
		if event := next(t, watches[service]); event.Err != nil || event.Response.Status != grpchealth.StatusServing {
			t.Fatalf("at first: %v", event)
		}
	}
	answered := make(chan error, 1)
	go func() {
		_, err := w.sandboxes(client, w.user).GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: slow})
		answered <- err
	}()
	<-g.entered
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	for service, watch := range watches {
		if event := next(t, watch); event.Err != nil || event.Response.Status != grpchealth.StatusNotServing {
			t.Errorf("%q, stopping: %v", service, event)
		}
	}
	select {
	case err := <-answered:
		t.Errorf("the request was cut short: %v", err)
	default:
	}
	close(g.letGo)
	if err := <-answered; err != nil {
		t.Errorf("the request that was under way: %v", err)
	}
	stopWatching()
	if err := <-stopped; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// next is the next event, or nothing when the watch has ended.
func next(t *testing.T, watch <-chan grpchealth.WatchEvent) grpchealth.WatchEvent {
	t.Helper()
	select {
	case event, ok := <-watch:
		if !ok {
			t.Fatal("the watch has ended")
		}
		return event
	case <-time.After(patience):
		t.Fatal("the watch says nothing")
	}
	return grpchealth.WatchEvent{}
}

func TestOpenStreamsAreToldThatTheServerStops(t *testing.T) {
	for name, options := range protocols {
		t.Run(name, func(t *testing.T) {
			w, _ := talk(t, shortGrace)
			client := w.sandboxes(http2(t, &http.Transport{}), w.user, options...)
			logs, err := client.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: endless})
			if err != nil {
				t.Fatal(err)
			}
			if !logs.Receive() {
				t.Fatal(logs.Err())
			}
			exec, err := client.StreamExec(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := exec.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Stdin{Stdin: []byte("x")}}); err != nil {
				t.Fatal(err)
			}
			if _, err := exec.Receive(); err != nil {
				t.Fatal(err)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- w.stop() }()
			_, err = lines(logs)
			if connect.CodeOf(err) != connect.CodeUnavailable || apierr.ReasonOf(err) != apierr.BackendUnavailable {
				t.Errorf("logs ended with %v (%s)", err, apierr.ReasonOf(err))
			}
			_, err = exec.Receive()
			if connect.CodeOf(err) != connect.CodeUnavailable || apierr.ReasonOf(err) != apierr.BackendUnavailable {
				t.Errorf("exec ended with %v (%s)", err, apierr.ReasonOf(err))
			}
			// Each side closes what the other has closed already.
			_, _ = exec.CloseRequest(), exec.CloseResponse()
			if err := <-stopped; err != nil {
				t.Errorf("Serve: %v", err)
			}
		})
	}
}

func TestAServerThatHasStoppedTakesNoConnections(t *testing.T) {
	w, _ := talk(t, shortGrace)
	url := w.URL()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+healthPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := (&http.Client{Transport: &http.Transport{}}).Do(request); err == nil {
		_ = response.Body.Close()
		t.Errorf("answered %d", response.StatusCode)
	}
}
