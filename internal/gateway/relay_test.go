package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	adminv1 "github.com/sandbar-project/sandbar/api/sandbar/admin/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

type execStream = connect.BidiStreamForClientSimple[sandboxv1.ExecStreamRequest, sandboxv1.ExecStreamResponse]

func startExec(ctx context.Context, t testing.TB, c clients, id string, command ...string) *execStream {
	t.Helper()
	stream, err := c.StreamExec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	init := &sandboxv1.ExecStreamInit{SandboxId: id, Command: command}
	if err := stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Init{Init: init}}); err != nil {
		t.Fatal(err)
	}
	return stream
}

func receive(t testing.TB, stream *execStream) *sandboxv1.ExecStreamResponse {
	t.Helper()
	frame, err := stream.Receive()
	if err != nil {
		t.Fatalf("receive: %v", err)
	}
	return frame
}

func TestAHalfClosedExecRunsToItsEndAndReadyComesFirst(t *testing.T) { // traps 1, 2, 6
	_, _, c := ready(t)
	stream := startExec(t.Context(), t, c, create(t, c).GetSandboxId(), "echo", "hello")
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if receive(t, stream).GetReady().GetReadyTime() == nil {
		t.Error("ready is not the first frame")
	}
	if out := receive(t, stream).GetOutput(); string(out.GetData()) != "hello\n" {
		t.Errorf("output = %v", out)
	}
	if exit := receive(t, stream).GetExit(); exit == nil {
		t.Error("no exit")
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
}

func TestInputFlowsAndCloseIsPassedOn(t *testing.T) { // trap 5
	_, _, c := ready(t)
	stream := startExec(t.Context(), t, c, create(t, c).GetSandboxId(), "cat")
	receive(t, stream)
	for _, text := range []string{"one", "two"} {
		if err := stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Stdin{Stdin: []byte(text)}}); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, stream).GetOutput().GetData(); string(got) != text { // trap 7: before the exit
			t.Errorf("echoed %q", got)
		}
	}
	if err := stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Close{Close: &sandboxv1.ExecStreamClose{}}}); err != nil {
		t.Fatal(err)
	}
	if receive(t, stream).GetExit() == nil {
		t.Error("no exit after close")
	}
	if _, err := stream.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v", err)
	}
	_ = stream.CloseRequest()
}

func TestACancelledExecIsKilledAndHarmsNothing(t *testing.T) { // traps 8, 9
	_, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	ctx, cancel := context.WithCancel(t.Context())
	stream := startExec(ctx, t, c, id, "hang")
	receive(t, stream)
	cancel()
	<-h.killed
	_ = stream.CloseResponse()

	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Exec(short, &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"hang"}}); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("a command that outlasts its call: %v", err)
	}
	<-h.killed
	if resp, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo", "ok"}}); err != nil || string(resp.GetStdout()) != "ok\n" {
		t.Errorf("afterwards: %v, %v", resp, err)
	}
}

func TestAStreamWithoutAnExitIsAnError(t *testing.T) { // trap 3
	_, _, c := ready(t)
	id := create(t, c).GetSandboxId()
	stream := startExec(t.Context(), t, c, id, "vanish")
	receive(t, stream)
	_, err := stream.Receive()
	wantReason(t, err, apierr.RunnerUnavailable)
	_, err = c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"vanish"}})
	wantReason(t, err, apierr.RunnerUnavailable)
}

func TestExecKeepsAsMuchAsIsAskedFor(t *testing.T) {
	_, _, c := ready(t)
	id := create(t, c).GetSandboxId()
	resp, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"both", "2500"}, MaxOutputBytes: 1500})
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.GetStdout()) != 1500 || !resp.GetStdoutTruncated() || resp.GetStdoutBytesProduced() != 2500 ||
		len(resp.GetStderr()) != 1500 || !resp.GetStderrTruncated() || resp.GetStderrBytesProduced() != 2500 {
		t.Errorf("resp = %v", resp)
	}
	resp, err = c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"exit", "3"}})
	if err != nil || resp.GetExitCode() != 3 || resp.GetStdoutTruncated() {
		t.Errorf("a failing command: %v, %v", resp, err)
	}
	_, err = c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, MaxOutputBytes: -1, Command: []string{"a"}})
	wantReason(t, err, apierr.InvalidRequest)
	_, err = c.Exec(t.Context(), &sandboxv1.ExecRequest{})
	wantReason(t, err, apierr.InvalidRequest)
}

func TestAReaderThatStopsHoldsTheProcessBackAndNobodyElse(t *testing.T) {
	_, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := startExec(ctx, t, c, id, "endless")
	receive(t, stuck)
	var group errgroup.Group
	for range 20 {
		group.Go(func() error {
			resp, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"both", "100000"}})
			if err == nil && resp.GetStdoutBytesProduced() != 100_000 {
				err = errors.New("output is missing")
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	cancel()
	<-h.killed
	_ = stuck.CloseResponse()
}

func TestCallsWaitForASandboxThatIsBeingCreated(t *testing.T) {
	_, h, c := ready(t)
	h.gate = make(chan struct{})
	id := create(t, c).GetSandboxId()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Exec(short, &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}}); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("a call that cannot wait: %v", err)
	}
	var group errgroup.Group
	group.Go(func() error {
		_, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}})
		return err
	})
	close(h.gate)
	if err := group.Wait(); err != nil {
		t.Errorf("a call that waited: %v", err)
	}
}

func TestTheHotPathReadsNothingFromTheStore(t *testing.T) {
	e, _, c := ready(t)
	id := create(t, c).GetSandboxId()
	before := e.store.readCount()
	for range 5 {
		if _, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := e.store.readCount() - before; n > 0 {
		t.Errorf("%d reads", n)
	}
}

func TestAnotherOrganizationsSandboxIsUnknown(t *testing.T) {
	e, h, c := ready(t)
	live, done := create(t, c).GetSandboxId(), create(t, c).GetSandboxId()
	h.exit(done, sandboxv1.State_STATE_COMPLETED, 0)
	awaitState(t, c, done, sandboxv1.State_STATE_COMPLETED)
	other := e.clients(t, "org-2")
	for _, id := range []string{live, done, "never-was"} {
		calls := map[string]func() error{
			"get": func() error {
				_, err := other.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: id})
				return err
			},
			"delete": func() error {
				_, err := other.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id})
				return err
			},
			"exec": func() error {
				_, err := other.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}})
				return err
			},
			"read": func() error {
				_, err := other.ReadFile(t.Context(), &sandboxv1.ReadFileRequest{SandboxId: id, Path: "/x"})
				return err
			},
		}
		for name, call := range calls {
			err := call()
			wantReason(t, err, apierr.SandboxNotFound)
			if want := `not_found: no sandbox "` + id + `"`; err == nil || err.Error() != want {
				t.Errorf("%s of %s: %v, want %s", name, id, err, want)
			}
		}
	}
	if _, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: live, Command: []string{"echo"}}); err != nil {
		t.Errorf("its owner: %v", err)
	}
	list, err := other.ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{ShowTerminated: true})
	if err != nil || len(list.GetSandboxes()) > 0 {
		t.Errorf("list = %v, %v", list, err)
	}
}

func TestCallsWithoutACallerAreRefused(t *testing.T) { // trap 52
	e, _, _ := ready(t)
	_, err := e.clients(t, "").ListSandboxes(t.Context(), &sandboxv1.ListSandboxesRequest{})
	wantReason(t, err, apierr.Unauthenticated)
}

func TestEndedSandboxesAreNotOperated(t *testing.T) {
	_, h, c := ready(t)
	id := create(t, c).GetSandboxId()
	h.exit(id, sandboxv1.State_STATE_COMPLETED, 0)
	awaitState(t, c, id, sandboxv1.State_STATE_COMPLETED)
	_, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}})
	wantReason(t, err, apierr.SandboxNotRunning)
	_, err = c.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{SandboxId: id, Path: "/x"})
	wantReason(t, err, apierr.SandboxNotRunning)
	logs, err := c.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: id})
	if err != nil {
		t.Fatal(err)
	}
	if logs.Receive() {
		t.Error("an ended sandbox has logs")
	}
	wantReason(t, logs.Err(), apierr.SandboxNotRunning)
	_ = logs.Close()
}

func TestAnUnknownContainerIsRefused(t *testing.T) {
	_, _, c := ready(t)
	id := create(t, c).GetSandboxId()
	_, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}, Container: "side"})
	wantReason(t, err, apierr.InvalidRequest)
	if _, err := c.Exec(t.Context(), &sandboxv1.ExecRequest{SandboxId: id, Command: []string{"echo"}, Container: "main"}); err != nil {
		t.Error(err)
	}
}

func TestTheFirstMessageOfAnExecMustBeInit(t *testing.T) {
	_, _, c := ready(t)
	stream, err := c.StreamExec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&sandboxv1.ExecStreamRequest{Message: &sandboxv1.ExecStreamRequest_Stdin{Stdin: []byte("x")}})
	_, err = stream.Receive()
	wantReason(t, err, apierr.InvalidRequest)
	empty, err := c.StreamExec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = empty.CloseRequest()
	_, err = empty.Receive()
	wantReason(t, err, apierr.InvalidRequest)
}

func TestLogsArePassedOnEntryByEntry(t *testing.T) {
	_, _, c := ready(t)
	id := create(t, c).GetSandboxId()
	logs, err := c.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: id})
	if err != nil {
		t.Fatal(err)
	}
	var offset uint64
	for logs.Receive() {
		entry := logs.Msg()
		offset += uint64(len(entry.GetData()))
		if entry.GetNextLogOffset() != offset || entry.GetLogSessionId() == "" { // traps 23, 24
			t.Errorf("entry = %v after %d bytes", entry, offset)
		}
	}
	if err := logs.Err(); err != nil || offset == 0 {
		t.Errorf("%d bytes, %v", offset, err)
	}
	_ = logs.Close()
	bad, err := c.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: id, TailLines: -1, ResumeLogSessionId: "s", Timestamps: true})
	if err != nil {
		t.Fatal(err)
	}
	bad.Receive()
	wantReason(t, bad.Err(), apierr.InvalidRequest)
	if n := len(apierr.BadRequest(bad.Err()).GetFieldViolations()); n != 3 {
		t.Errorf("%d violations: %v", n, bad.Err())
	}
	_ = bad.Close()
}

func TestAFollowerThatLosesTheRunnerIsToldToResume(t *testing.T) {
	h := newHost()
	_, c, kill := connected(t, h)
	id := create(t, c).GetSandboxId()
	logs, err := c.StreamLogs(t.Context(), &sandboxv1.StreamLogsRequest{SandboxId: id, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		logs.Receive()
	}
	kill()
	if !logs.Receive() || logs.Msg().GetError().GetCode() != "STREAM_INTERRUPTED" {
		t.Errorf("entry = %v, %v", logs.Msg(), logs.Err())
	}
	if logs.Receive() || logs.Err() != nil {
		t.Errorf("the end is %v", logs.Err())
	}
	_ = logs.Close()
}

func TestFilesPassAndTheirErrorsKeepTheirDetails(t *testing.T) { // traps 30 to 34
	_, _, c := ready(t)
	id := create(t, c).GetSandboxId()
	resp, err := c.ReadFile(t.Context(), &sandboxv1.ReadFileRequest{SandboxId: id, Path: "/all-bytes"})
	if err != nil || len(resp.GetContent()) != 256 || resp.GetContent()[255] != 255 {
		t.Errorf("read = %v, %v", resp, err)
	}
	_, err = c.ReadFile(t.Context(), &sandboxv1.ReadFileRequest{SandboxId: id, Path: "/none"})
	wantReason(t, err, apierr.FileNotFound)
	if got := apierr.Info(err).GetMetadata()["filepath"]; got != "/none" {
		t.Errorf("filepath = %q", got)
	}
	if _, err := c.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{SandboxId: id, Path: "/x"}); err != nil {
		t.Errorf("an empty file: %v", err)
	}
	if _, err := c.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{SandboxId: id, Path: "/x", Content: make([]byte, 32<<20)}); err != nil {
		t.Errorf("32 MiB: %v", err)
	}
	_, writeErr := c.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{SandboxId: id, Path: "/x", Content: bytes.Repeat([]byte("x"), 32<<20+1)})
	_, readErr := c.ReadFile(t.Context(), &sandboxv1.ReadFileRequest{SandboxId: id, Path: "/large"})
	for operation, err := range map[string]error{"write": writeErr, "read": readErr} {
		wantReason(t, err, apierr.FileTooLarge)
		meta := apierr.Info(err).GetMetadata()
		if meta["size_bytes"] != "33554433" || meta["max_size_bytes"] != "33554432" || meta["operation"] != operation ||
			!strings.HasPrefix(meta["filepath"], "/") {
			t.Errorf("metadata = %v", meta)
		}
	}
	_, err = c.ReadFile(t.Context(), &sandboxv1.ReadFileRequest{})
	wantReason(t, err, apierr.InvalidRequest)
}

func TestDiscoveryShowsWhatThereIs(t *testing.T) { // trap 49
	e, _, c := ready(t)
	e.runners.declare(gateway.Runner{RunnerKey: gateway.RunnerKey{OrganizationID: org, RunnerID: "runner-0"}, RunnerGroupID: "group-0"})
	list := func(req *sandboxv1.ListAvailableRunnersRequest) (ids []string) {
		req.PageSize = 1
		for {
			resp, err := c.discovery.ListAvailableRunners(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range resp.GetRunners() {
				ids = append(ids, r.GetRunnerId())
				if full := req.GetView() == sandboxv1.RunnerView_RUNNER_VIEW_FULL; r.GetHealthy() && (r.GetResources() != nil) != full {
					t.Errorf("resources = %v in view %v", r.GetResources(), req.GetView())
				}
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				return ids
			}
		}
	}
	for _, test := range []struct {
		name string
		req  *sandboxv1.ListAvailableRunnersRequest
		want string
	}{
		{"all", &sandboxv1.ListAvailableRunnersRequest{}, "runner-0 runner-1"},
		{"full", &sandboxv1.ListAvailableRunnersRequest{View: sandboxv1.RunnerView_RUNNER_VIEW_FULL}, "runner-0 runner-1"},
		{"healthy", &sandboxv1.ListAvailableRunnersRequest{HealthyOnly: true}, "runner-1"},
		{"by group", &sandboxv1.ListAvailableRunnersRequest{RunnerGroupId: "group-0"}, "runner-0"},
		{"by architecture", &sandboxv1.ListAvailableRunnersRequest{Architecture: "amd64"}, "runner-1"},
		{"by GPU", &sandboxv1.ListAvailableRunnersRequest{GpuType: "H100"}, ""},
		{"by visibility", &sandboxv1.ListAvailableRunnersRequest{ServiceVisibility: sandboxv1.Visibility_VISIBILITY_PUBLIC}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(list(test.req), " "); got != test.want {
				t.Errorf("runners = %q, want %q", got, test.want)
			}
		})
	}
	r, err := c.discovery.GetAvailableRunner(t.Context(), &sandboxv1.GetAvailableRunnerRequest{RunnerId: "runner-1", OrganizationId: org})
	if err != nil || r.GetResources().GetAvailableCpuMillicores() < 500 || r.GetConnectedAt() == nil || r.GetOrganizationId() != org || !r.GetIsShared() {
		t.Errorf("runner = %v, %v", r, err)
	}
	for _, req := range []*sandboxv1.GetAvailableRunnerRequest{
		{RunnerId: "none", OrganizationId: org}, {RunnerId: "runner-1", OrganizationId: "org-2"},
	} {
		_, err := c.discovery.GetAvailableRunner(t.Context(), req)
		wantReason(t, err, apierr.RunnerNotFound)
	}
	images, err := c.images.ListImages(t.Context(), &adminv1.ListImagesRequest{RunnerId: "runner-1"})
	if err != nil || len(images.GetImages()) != 1 {
		t.Errorf("images = %v, %v", images, err)
	}
	_, err = c.images.PruneImages(t.Context(), &adminv1.PruneImagesRequest{RunnerId: "none"})
	wantReason(t, err, apierr.RunnerNotFound)
	_, err = c.images.PruneImages(t.Context(), &adminv1.PruneImagesRequest{RunnerId: "runner-0"})
	wantReason(t, err, apierr.RunnerUnavailable)
}

func TestWhatIsNotImplementedSaysSo(t *testing.T) {
	_, _, c := ready(t)
	_, err := c.CreateSandboxFromTemplate(t.Context(), &sandboxv1.CreateSandboxFromTemplateRequest{})
	wantReason(t, err, apierr.NotImplemented)
	_, err = c.CreateFileSystemSnapshot(t.Context(), &sandboxv1.CreateFileSystemSnapshotRequest{})
	wantReason(t, err, apierr.NotImplemented)
	_, err = c.ListFileSystemSnapshots(t.Context(), &sandboxv1.ListFileSystemSnapshotsRequest{})
	wantReason(t, err, apierr.NotImplemented)
	_, err = c.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "x", SnapshotVolumes: []string{"v"}})
	wantReason(t, err, apierr.NotImplemented)
}
