package gateway

import (
	"context"
	"strconv"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

// maxFileBytes is the most that one file call carries; larger files go through
// StreamExec.
const maxFileBytes = 32 << 20

// WriteFile implements SandboxService.
func (g *Gateway) WriteFile(ctx context.Context, req *sandboxv1.WriteFileRequest) (*sandboxv1.WriteFileResponse, error) {
	if err := checkFile(req.GetSandboxId(), req.GetPath()); err != nil {
		return nil, err
	}
	if size := int64(len(req.GetContent())); size > maxFileBytes {
		return nil, fileTooLarge("write", req.GetPath(), size)
	}
	_, s, err := g.operable(ctx, req.GetSandboxId(), req.GetContainer())
	if err != nil {
		return nil, err
	}
	if _, err := s.client.WriteFile(ctx, req); err != nil {
		return nil, relayed(ctx, s, err)
	}
	return &sandboxv1.WriteFileResponse{}, nil
}

// ReadFile implements SandboxService. The runner refuses what is too large
// before it reads it.
func (g *Gateway) ReadFile(ctx context.Context, req *sandboxv1.ReadFileRequest) (*sandboxv1.ReadFileResponse, error) {
	if err := checkFile(req.GetSandboxId(), req.GetPath()); err != nil {
		return nil, err
	}
	_, s, err := g.operable(ctx, req.GetSandboxId(), req.GetContainer())
	if err != nil {
		return nil, err
	}
	resp, err := s.client.ReadFile(ctx, req)
	if err != nil {
		return nil, relayed(ctx, s, err)
	}
	if size := int64(len(resp.GetContent())); size > maxFileBytes {
		return nil, fileTooLarge("read", req.GetPath(), size)
	}
	return resp, nil
}

func checkFile(sandboxID, path string) error {
	var v violations
	v.sandboxID(sandboxID)
	v.required("path", path)
	v.noNUL("path", path)
	if len(path) > maxPathBytes {
		v.add("path", "TOO_LONG", "has %d bytes; at most %d are allowed", len(path), maxPathBytes)
	}
	return v.err()
}

// fileTooLarge carries what clients need to stream the file instead (trap 31).
func fileTooLarge(operation, path string, size int64) error {
	return apierr.New(apierr.FileTooLarge,
		"%q has %d bytes; at most %d fit into one call, stream it through StreamExec instead", path, size, maxFileBytes).
		With("size_bytes", strconv.FormatInt(size, 10)).
		With("max_size_bytes", strconv.Itoa(maxFileBytes)).
		With("filepath", path).
		With("operation", operation)
}
