package agent

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

// FuzzRequests plays any sequence of requests on one connection, to an agent
// that is not PID 1 and to whose workload nothing is started, and demands that
// the agent neither fails nor stops answering others.
func FuzzRequests(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 2, 0x42, 0})
	f.Fuzz(func(t *testing.T, wire []byte) {
		if mayTouchTheMachine(wire) {
			t.Skip()
		}
		client, near := serveInProcess(t)
		_, _ = near.Write(wire)
		_ = near.(*net.UnixConn).CloseWrite()
		drain(near)
		if err := client.Ping(t.Context()); err != nil && !asksForShutdown(wire) {
			t.Fatalf("the agent does not answer any more: %v", err)
		}
	})
}

// TestAnyOrderOfCallsIsSurvived plays well-formed requests in any order.
func TestAnyOrderOfCallsIsSurvived(t *testing.T) {
	dir := t.TempDir()
	requests := []*guestv1.Request{
		{Call: &guestv1.Request_Watch{Watch: &guestv1.Watch{}}},
		{Call: &guestv1.Request_Exec{Exec: &guestv1.Exec{Process: command("true")}}},
		{Call: &guestv1.Request_Exec{Exec: &guestv1.Exec{}}},
		{Call: &guestv1.Request_Start{Start: &guestv1.Start{}}},
		{Call: &guestv1.Request_ReadFile{ReadFile: &guestv1.ReadFile{Path: filepath.Join(dir, "f")}}},
		{Call: &guestv1.Request_WriteFile{WriteFile: &guestv1.WriteFile{Path: filepath.Join(dir, "f")}}},
		{Call: &guestv1.Request_Stop{Stop: &guestv1.Stop{GraceMillis: -1}}},
		{Call: &guestv1.Request_Ping{Ping: &guestv1.Ping{}}},
		{Call: &guestv1.Request_FollowOutput{FollowOutput: &guestv1.FollowOutput{Offset: 1}}},
		{Call: &guestv1.Request_FollowOutput{FollowOutput: &guestv1.FollowOutput{}}},
		{Call: &guestv1.Request_Stdin{Stdin: []byte("x")}},
		{Call: &guestv1.Request_CloseStdin{CloseStdin: &guestv1.CloseStdin{}}},
		{Call: &guestv1.Request_Resize{Resize: &guestv1.Resize{}}},
		{Call: &guestv1.Request_FileData{FileData: []byte("x")}},
		{Call: &guestv1.Request_EndOfFile{EndOfFile: &guestv1.EndOfFile{}}},
	}
	rapid.Check(t, func(rt *rapid.T) {
		client, near := serveInProcess(t)
		writer := guest.NewWriter(near)
		for _, request := range rapid.SliceOfN(rapid.SampledFrom(requests), 1, 6).Draw(rt, "requests") {
			// The agent may have closed already.
			_ = writer.Write(request)
		}
		_ = near.(*net.UnixConn).CloseWrite()
		drain(near)
		if err := client.Ping(t.Context()); err != nil {
			rt.Fatalf("the agent does not answer any more: %v", err)
		}
	})
	left, err := filepath.Glob(filepath.Join(dir, ".sandbar-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left over: %q, %v", left, err)
	}
}

// serveInProcess runs an agent in this process, until the test's end, and
// returns a client of it and one open connection.
func serveInProcess(t testing.TB) (*guest.Client, net.Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	agent := New(Config{})
	go func() { served <- agent.Serve(ctx, listener) }()
	near, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = near.Close()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	client := guest.NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	return client, near
}

func drain(conn net.Conn) {
	buf := make([]byte, 4096)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}

// first returns the first request of a wire, if it is one.
func first(wire []byte) *guestv1.Request {
	if len(wire) < 4 {
		return nil
	}
	request := &guestv1.Request{}
	if err := proto.Unmarshal(wire[4:], request); err != nil && !errors.Is(err, proto.Error) {
		return nil
	}
	return request
}

// mayTouchTheMachine says that a sequence might run a program or write a file
// of the machine that tests.
func mayTouchTheMachine(wire []byte) bool {
	request := first(wire)
	return request.GetStart() != nil || request.GetWriteFile() != nil || request.GetReadFile() != nil
}

func asksForShutdown(wire []byte) bool { return first(wire).GetShutdown() != nil }
