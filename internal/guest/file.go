package guest

import (
	"bytes"
	"context"
	"errors"
	"io"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

// ReadFile opens a file of the sandbox; symbolic links are followed inside it.
// The reader answers io.EOF only after the whole file was read, and must be
// closed. maxBytes bounds the file's size; 0 does not.
//
// Codes: NOT_FOUND, IS_DIRECTORY, PERMISSION_DENIED, TOO_LARGE (with
// SizeBytes), INVALID (a path that is not absolute, a device or socket).
// TOO_LARGE may also come from Read, when the file grows meanwhile.
func (c *Client) ReadFile(ctx context.Context, path string, maxBytes int64) (io.ReadCloser, error) {
	call, err := c.open(ctx, "read file", &guestv1.Request{Call: &guestv1.Request_ReadFile{
		ReadFile: &guestv1.ReadFile{Path: path, MaxBytes: maxBytes},
	}})
	if err != nil {
		return nil, err
	}
	reader := &fileReader{call: call}
	// The first response tells whether the file can be read at all.
	if reader.err = reader.fill(); reader.err != nil && !errors.Is(reader.err, io.EOF) {
		call.close()
		return nil, reader.err
	}
	return reader, nil
}

type fileReader struct {
	call *call
	data []byte
	err  error
}

func (r *fileReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(r.data) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.err = r.fill()
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// fill receives one response; io.EOF is the end of the file.
func (r *fileReader) fill() error {
	response, err := r.call.receiveLent()
	if err != nil {
		return err
	}
	switch answer := response.GetAnswer().(type) {
	case *guestv1.Response_FileData:
		r.data = answer.FileData
		return nil
	case *guestv1.Response_Done:
		return io.EOF
	default:
		return r.call.wrap(errUnexpected(response))
	}
}

func (r *fileReader) Close() error {
	r.call.close()
	return nil
}

// WriteFile creates or replaces a file with what r holds; parent directories
// are made. The file appears whole or not at all. mode is its permission bits
// (0: 0644); a file that exists keeps its own mode and owner when mode is 0,
// and its owner otherwise.
//
// Codes: IS_DIRECTORY, NOT_FOUND (a parent that is no directory),
// PERMISSION_DENIED (read-only), NO_SPACE, INVALID (a path that is not
// absolute, a device or socket).
func (c *Client) WriteFile(ctx context.Context, path string, mode uint32, r io.Reader) error {
	call, err := c.open(ctx, "write file", &guestv1.Request{Call: &guestv1.Request_WriteFile{
		WriteFile: &guestv1.WriteFile{Path: path, Mode: mode},
	}})
	if err != nil {
		return err
	}
	defer call.close()
	if err := call.sendFile(r); err != nil {
		return err
	}
	response, err := call.receive()
	if err != nil {
		return err
	}
	if response.GetDone() == nil {
		return call.wrap(errUnexpected(response))
	}
	return nil
}

func (c *Client) writeFile(ctx context.Context, file *guestv1.File) error {
	return c.WriteFile(ctx, file.GetPath(), file.GetMode(), bytes.NewReader(file.GetContent()))
}

// sendFile sends all of r. A guest that stops reading has refused: its reason
// is the next response, so that is no error here.
func (c *call) sendFile(r io.Reader) error {
	data := &guestv1.Request_FileData{}
	chunk := &guestv1.Request{Call: data}
	buf := make([]byte, MaxChunkBytes)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			data.FileData = buf[:n]
			if err := c.send(chunk); err != nil {
				return ignoreDisconnect(err)
			}
		}
		if err == io.EOF {
			return ignoreDisconnect(c.send(&guestv1.Request{Call: &guestv1.Request_EndOfFile{EndOfFile: &guestv1.EndOfFile{}}}))
		}
		if err != nil {
			// Closing without the end of the file leaves the old one in place.
			return c.wrap(err)
		}
	}
}
