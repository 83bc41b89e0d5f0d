package output_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/cli/output"
)

func TestTablesAreAlignedAndHarmless(t *testing.T) {
	var out strings.Builder
	err := output.Print(&out, output.FormatTable, &sandboxv1.Sandbox{}, func() output.Table {
		return output.Table{Headings: []string{"ID", "REASON"}, Rows: [][]string{{"a-long-id", "ok"}, {"b", "\x1b[2Jclear\nlines"}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = "ID          REASON\na-long-id   ok\nb            [2Jclear lines\n"
	if out.String() != want {
		t.Errorf("table:\n%q\nwant:\n%q", out.String(), want)
	}
}

func TestJSONIsThatOfTheRESTAPI(t *testing.T) {
	var out strings.Builder
	sandbox := &sandboxv1.Sandbox{SandboxId: "s1", Status: &sandboxv1.SandboxStatus{
		State: sandboxv1.State_STATE_RUNNING, CreateTime: timestamppb.New(time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)),
	}}
	if err := output.Print(&out, output.FormatJSON, sandbox, nil); err != nil {
		t.Fatal(err)
	}
	const want = `{
  "sandboxId": "s1",
  "status": {
    "state": "STATE_RUNNING",
    "createTime": "2026-01-31T08:00:00Z"
  }
}
`
	if out.String() != want {
		t.Errorf("JSON:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestAges(t *testing.T) {
	now := time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)
	for want, age := range map[string]time.Duration{
		"0s": -time.Minute, "59s": 59 * time.Second, "1m": 119 * time.Second, "2h": 2 * time.Hour,
		"2h5m": 2*time.Hour + 5*time.Minute, "1d": 47 * time.Hour, "400d": 400 * 24 * time.Hour,
	} {
		if got := output.Age(timestamppb.New(now.Add(-age)), now); got != want {
			t.Errorf("Age of %s = %q, want %q", age, got, want)
		}
	}
	if got := output.Age(nil, now); got != output.Unset {
		t.Errorf("Age of nothing = %q", got)
	}
}

func TestCounts(t *testing.T) {
	for n, want := range map[int]string{0: "0 images", 1: "1 image", 2: "2 images"} {
		if got := output.Count(n, "image"); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for want, size := range map[string]int64{"0B": 0, "1023B": 1023, "1.0KiB": 1024, "45.5MiB": 45<<20 + 512<<10, "2048.0TiB": 2 << 50} {
		if got := output.Bytes(size); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", size, got, want)
		}
	}
}
