package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/pagetoken"
)

const defaultPageSize = 100

// GetSandbox implements SandboxService. Sandboxes that have ended stay
// readable for retention (trap 12).
func (g *Gateway) GetSandbox(ctx context.Context, req *sandboxv1.GetSandboxRequest) (*sandboxv1.Sandbox, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	var v violations
	v.sandboxID(req.GetSandboxId())
	if err := v.err(); err != nil {
		return nil, err
	}
	sb, err := g.find(ctx, caller.OrganizationID, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if err := g.checkAbandoned(ctx, sb); err != nil {
		return nil, err
	}
	return g.describe(sb.record()), nil
}

// describe is a sandbox as it is read. One that is being created says when it
// waits for its runner.
func (g *Gateway) describe(record *Record) *sandboxv1.Sandbox {
	out := toAPI(record)
	if !isCreating(record) {
		return out
	}
	if home := g.registry.known(runnerKeyOf(record)); home != nil && home.session() != nil {
		return out
	}
	out.Status = proto.CloneOf(record.Status)
	out.Status.StateReason = fmt.Sprintf("waiting for runner %s, which is not connected", record.RunnerID)
	return out
}

// checkAbandoned ends a live sandbox that nobody will ever take up: its runner
// has been removed, or has not come back in the time that creation may take.
func (g *Gateway) checkAbandoned(ctx context.Context, sb *sandbox) error {
	record := sb.record()
	if !isLive(record) || g.registry.sandbox(sb.id) != nil {
		return nil
	}
	_, ok, err := g.runners.Runner(ctx, sb.key)
	if err != nil {
		return fmt.Errorf("look up runner %s: %w", sb.key.RunnerID, err)
	}
	switch {
	case !ok:
		return g.lose(ctx, sb, reasonRunnerRemoved)
	case isCreating(record) && g.clock.Since(record.CreateTime) > creationTimeout:
		return g.lose(ctx, sb, reasonCreationOverdue)
	}
	return nil
}

// ListSandboxes implements SandboxService: the organization's, newest first.
func (g *Gateway) ListSandboxes(ctx context.Context, req *sandboxv1.ListSandboxesRequest) (*sandboxv1.ListSandboxesResponse, error) {
	caller, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	query := ListQuery{
		OrganizationID: caller.OrganizationID,
		Tags:           req.GetTags(),
		State:          req.GetState(),
		// A filter for a state that is final widens by itself (trap 35).
		IncludeEnded: req.GetShowTerminated() || ended(req.GetState()),
		RunnerIDs:    req.GetRunnerIds(),
		VolumeIDs:    req.GetVolumeIds(),
	}
	var v violations
	size := v.pageSize(req.GetPageSize())
	if _, ok := sandboxv1.State_name[int32(req.GetState())]; !ok {
		v.add("state", "UNKNOWN", "%d is not a state", req.GetState())
	}
	list := pagetoken.List{
		"ListSandboxes", query.OrganizationID, query.Tags, query.State, query.IncludeEnded, query.RunnerIDs, query.VolumeIDs,
	}
	query.AfterCreateTime, query.AfterSandboxID = rowOf(v.pageToken(list, req.GetPageToken()))
	if err := v.err(); err != nil {
		return nil, err
	}
	// One more says whether there is another page.
	query.Limit = size + 1
	records, err := g.store.Sandboxes(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	out := &sandboxv1.ListSandboxesResponse{}
	if len(records) > size {
		records = records[:size]
		last := records[size-1]
		out.NextPageToken = list.Token(rowKey(last))
	}
	for _, record := range records {
		out.Sandboxes = append(out.Sandboxes, g.describe(record))
	}
	return out, nil
}

// pageSize is how many rows a page has; larger requests get the maximum.
func (v *violations) pageSize(asked int32) int {
	if asked < 0 {
		v.add("page_size", "OUT_OF_RANGE", "%d is negative; leave it out for %d rows", asked, defaultPageSize)
		return defaultPageSize
	}
	return pagetoken.Size(asked, defaultPageSize)
}

// pageToken answers with the key in a token; nil for none, and for one that is
// not the list's.
func (v *violations) pageToken(list pagetoken.List, token string) []byte {
	if token == "" {
		return nil
	}
	key, ok := list.Key(token)
	if !ok {
		v.add("page_token", "INVALID", "is not a token that this list has given out with the same filters; begin again without one")
		return nil
	}
	return key
}

const rowTimeBytes = 8

// rowKey is the place of a row. As a key, and not a count, it stays right while
// rows come and go (trap 36).
func rowKey(record *Record) []byte {
	key := binary.BigEndian.AppendUint64(nil, uint64(record.CreateTime.UnixNano()))
	return append(key, record.SandboxID...)
}

// rowOf reads a key that rowKey has made; of any other, which only a forged
// token has, it makes the beginning of the list.
func rowOf(key []byte) (createTime time.Time, sandboxID string) {
	if len(key) <= rowTimeBytes {
		return time.Time{}, ""
	}
	nanos := int64(binary.BigEndian.Uint64(key))
	return time.Unix(0, nanos).UTC(), string(key[rowTimeBytes:])
}
