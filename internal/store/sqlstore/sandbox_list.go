package sqlstore

import (
	"context"
	"errors"
	"strconv"
	"strings"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
	"github.com/sandbar-project/sandbar/internal/store/sqlstore/db"
)

// This query is put together at run time, because which index leads it depends
// on what is asked for, and a query that covers every case at once would read
// all of an organization's sandboxes to find a rare tag.

const sandboxColumns = `s.organization_id, s.sandbox_id, s.user_id, s.runner_id, s.request_id, s.request_digest,
	s.spec, s.status, s.state, s.generation, s.create_time, s.end_time, s.terminate_requested`

// selection is a query in the making.
type selection struct {
	conditions []string
	args       []any
}

// where adds a condition, in which each ? stands for the next of the arguments.
func (s *selection) where(condition string, args ...any) {
	for _, arg := range args {
		condition = strings.Replace(condition, "?", s.arg(arg), 1)
	}
	s.conditions = append(s.conditions, condition)
}

// arg adds an argument and answers with what stands for it.
func (s *selection) arg(value any) string {
	s.args = append(s.args, value)
	return "$" + strconv.Itoa(len(s.args))
}

// sandboxListQuery leads with the table whose index is the most selective, in
// the order of the answer: a tag's, a volume's, or the sandboxes' own.
func sandboxListQuery(join string, query gateway.ListQuery) (string, []any) {
	var (
		from  = "sandboxes s"
		order = "s"
		sel   selection
	)
	tags, volumes := query.Tags, query.VolumeIDs
	switch {
	case len(tags) > 0:
		from, order = "sandbox_tags t "+join+" sandboxes s ON s.organization_id = t.organization_id AND s.sandbox_id = t.sandbox_id", "t"
		sel.where("t.organization_id = ? AND t.tag = ?", query.OrganizationID, tags[0])
		tags = tags[1:]
	case len(volumes) == 1:
		from, order = "sandbox_volumes v "+join+" sandboxes s ON s.organization_id = v.organization_id AND s.sandbox_id = v.sandbox_id", "v"
		sel.where("v.organization_id = ? AND v.volume_id = ?", query.OrganizationID, volumes[0])
		volumes = nil
	default:
		sel.where("s.organization_id = ?", query.OrganizationID)
	}
	for _, tag := range tags {
		sel.where(`EXISTS (SELECT 1 FROM sandbox_tags x
			WHERE x.organization_id = s.organization_id AND x.tag = ? AND x.create_time = s.create_time AND x.sandbox_id = s.sandbox_id)`, tag)
	}
	if len(volumes) > 0 {
		sel.where(`EXISTS (SELECT 1 FROM sandbox_volumes x
			WHERE x.organization_id = s.organization_id AND x.sandbox_id = s.sandbox_id AND x.volume_id IN (`+placeholders(len(volumes))+`))`,
			anys(volumes)...)
	}
	if len(query.RunnerIDs) > 0 {
		sel.where("s.runner_id IN ("+placeholders(len(query.RunnerIDs))+")", anys(query.RunnerIDs)...)
	}
	if query.State != sandboxv1.State_STATE_UNSPECIFIED {
		sel.where("s.state = ?", int64(query.State))
	}
	if !query.IncludeEnded {
		sel.where("s.end_time IS NULL")
	}
	if query.AfterSandboxID != "" {
		sel.where("("+order+".create_time, "+order+".sandbox_id) < (?, ?)", encodeTime(query.AfterCreateTime), query.AfterSandboxID)
	}
	limit := sel.arg(query.Limit)
	text := "SELECT " + sandboxColumns + " FROM " + from + " WHERE " + strings.Join(sel.conditions, " AND ") +
		" ORDER BY " + order + ".create_time DESC, " + order + ".sandbox_id DESC LIMIT " + limit
	return text, sel.args
}

// Sandboxes implements gateway.Store.
func (s *Store) Sandboxes(ctx context.Context, query gateway.ListQuery) (_ []*gateway.Record, err error) {
	text, args := sandboxListQuery(s.dialect.OrderedJoin, query)
	rows, err := s.read.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, s.explain("list sandboxes", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var records []*gateway.Record
	for rows.Next() {
		var row db.Sandbox
		err := rows.Scan(&row.OrganizationID, &row.SandboxID, &row.UserID, &row.RunnerID, &row.RequestID, &row.RequestDigest,
			&row.Spec, &row.Status, &row.State, &row.Generation, &row.CreateTime, &row.EndTime, &row.TerminateRequested)
		if err != nil {
			return nil, s.explain("list sandboxes", err)
		}
		record, err := decodeSandbox(row)
		if err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, s.explain("list sandboxes", rows.Err())
}

func placeholders(n int) string {
	return strings.TrimSuffix(strings.Repeat("?, ", n), ", ")
}

func anys(values []string) []any {
	out := make([]any, len(values))
	for i, value := range values {
		out[i] = value
	}
	return out
}
