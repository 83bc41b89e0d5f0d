package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/guest"
)

// maxFileBytes bounds a file that travels in one message; larger ones stream
// through an exec.
const maxFileBytes = 32 << 20

// WriteFile creates or replaces a file of a running sandbox.
func (s *service) WriteFile(ctx context.Context, request *sandboxv1.WriteFileRequest) (*sandboxv1.WriteFileResponse, error) {
	sandbox, path, err := s.file(request.GetSandboxId(), request.GetContainer(), request.GetPath())
	if err != nil {
		return nil, err
	}
	if size := int64(len(request.GetContent())); size > maxFileBytes {
		return nil, errTooLarge("write", request.GetPath(), size)
	}
	if err := sandbox.guest.WriteFile(ctx, path, 0, bytes.NewReader(request.GetContent())); err != nil {
		return nil, sandbox.fileError(ctx, "write", request.GetPath(), err)
	}
	return &sandboxv1.WriteFileResponse{}, nil
}

// ReadFile reads a file of a running sandbox.
func (s *service) ReadFile(ctx context.Context, request *sandboxv1.ReadFileRequest) (*sandboxv1.ReadFileResponse, error) {
	sandbox, path, err := s.file(request.GetSandboxId(), request.GetContainer(), request.GetPath())
	if err != nil {
		return nil, err
	}
	file, err := sandbox.guest.ReadFile(ctx, path, maxFileBytes)
	if err != nil {
		return nil, sandbox.fileError(ctx, "read", request.GetPath(), err)
	}
	content, err := io.ReadAll(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, sandbox.fileError(ctx, "read", request.GetPath(), err)
	}
	return &sandboxv1.ReadFileResponse{Content: content}, nil
}

// file finds a running sandbox and the absolute form of a path in it.
func (s *service) file(id, container, path string) (*sandbox, string, error) {
	if path == "" {
		return nil, "", apierr.New(apierr.InvalidRequest, "path: is empty; name a file")
	}
	sandbox, err := s.target(id, container)
	if err != nil {
		return nil, "", err
	}
	r, err := sandbox.running()
	if err != nil {
		return nil, "", err
	}
	return sandbox, r.Process.absolute(path), nil
}

func errTooLarge(operation, path string, size int64) error {
	return apierr.New(apierr.FileTooLarge, "%s %s: the file has %d bytes, and one call carries at most %d; stream it through an exec", operation, path, size, maxFileBytes).
		With("filepath", path).
		With("operation", operation).
		With("size_bytes", strconv.FormatInt(size, 10)).
		With("max_size_bytes", strconv.Itoa(maxFileBytes))
}

// fileError gives what a guest says of a file the reason that clients know.
func (s *sandbox) fileError(ctx context.Context, operation, path string, err error) error {
	var refusal *guest.Error
	if !errors.As(err, &refusal) {
		return s.guestError(ctx, operation+" "+path, err)
	}
	reason, what := apierr.FileIOFailed, refusal.Message
	switch refusal.Code {
	case guestv1.Error_TOO_LARGE:
		return errTooLarge(operation, path, refusal.SizeBytes)
	case guestv1.Error_NOT_FOUND:
		reason, what = apierr.FileNotFound, "there is no such file or directory"
	case guestv1.Error_IS_DIRECTORY:
		reason, what = apierr.FileIsDirectory, "it is a directory, not a file"
	case guestv1.Error_PERMISSION_DENIED:
		reason = apierr.FilePermissionDenied
	case guestv1.Error_NO_SPACE:
		what = "the sandbox has no space left"
	case guestv1.Error_INVALID:
		if _, running := s.running(); running != nil {
			return running
		}
	default:
	}
	return apierr.New(reason, "%s %s: %s", operation, path, what).
		With("filepath", path).With("operation", operation).Because(err)
}
