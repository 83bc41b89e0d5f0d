package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
	"github.com/sandbar-project/sandbar/internal/guest"
)

const (
	defaultFileMode = 0o644
	parentMode      = 0o755
	modeBits        = 0o7777
	maxSymlinks     = 40
)

// readFile sends a file's contents; the caller sends what ends the call.
func readFile(c *connection, request *guestv1.ReadFile) error {
	path := request.GetPath()
	if err := checkPath(path); err != nil {
		return err
	}
	if request.GetMaxBytes() < 0 {
		return invalid("max_bytes: %d, expected 0 or more", request.GetMaxBytes())
	}
	file, err := openRegular(path)
	if err != nil {
		return fileError(path, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fileError(path, err)
	}
	limit := request.GetMaxBytes()
	if limit > 0 && info.Size() > limit {
		return tooLarge(path, info.Size(), limit)
	}
	buf := make([]byte, guest.MaxChunkBytes)
	data := &guestv1.Response_FileData{}
	response := &guestv1.Response{Answer: data}
	// The size is only what it was: the file may grow, and files of /proc say 0.
	for sent := int64(0); ; {
		n, err := file.Read(buf)
		if sent += int64(n); limit > 0 && sent > limit {
			return tooLarge(path, sent, limit)
		}
		if n > 0 {
			data.FileData = buf[:n]
			if err := c.write(response); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fileError(path, err)
		}
	}
}

func tooLarge(path string, size, limit int64) error {
	return &guest.Error{
		Code:      guestv1.Error_TOO_LARGE,
		Message:   fmt.Sprintf("%s: %d bytes, expected at most %d", path, size, limit),
		SizeBytes: size,
	}
}

var errNotRegular = errors.New("not a regular file")

// openRegular opens a regular file for reading and nothing else: a device or
// pipe might block, or do something.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := checkRegular(info); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	// It may be another one by now.
	if info, err = file.Stat(); err == nil {
		err = checkRegular(info)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func checkRegular(info os.FileInfo) error {
	switch {
	case info.IsDir():
		return unix.EISDIR
	case !info.Mode().IsRegular():
		return errNotRegular
	default:
		return nil
	}
}

// receiveFile replaces a file by what the runner sends.
func receiveFile(c *connection, request *guestv1.WriteFile) error {
	pending, err := newPendingFile(request.GetPath(), request.GetMode())
	if err != nil {
		return err
	}
	defer pending.discard()
	message := &guestv1.Request{}
	for {
		if err := c.read(message); err != nil {
			return err
		}
		switch call := message.GetCall().(type) {
		case *guestv1.Request_FileData:
			if err := pending.write(call.FileData); err != nil {
				return err
			}
		case *guestv1.Request_EndOfFile:
			return pending.commit()
		default:
			return invalid("file_data or end_of_file expected, got %T", call)
		}
	}
}

// writeFile replaces a file whose contents are there.
func writeFile(file *guestv1.File) error {
	pending, err := newPendingFile(file.GetPath(), file.GetMode())
	if err != nil {
		return err
	}
	defer pending.discard()
	if err := pending.write(file.GetContent()); err != nil {
		return err
	}
	return pending.commit()
}

// pendingFile is a file on its way: it lies beside its place, under a name of
// its own, and moves there when it is whole.
type pendingFile struct {
	// path is as the caller named it; target is where that leads.
	path   string
	target string
	temp   *os.File
	moved  bool
}

// newPendingFile prepares a file of those permission bits. With 0 it takes
// those of the file it replaces; the owner is always that one's.
func newPendingFile(path string, mode uint32) (*pendingFile, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	if mode > modeBits {
		return nil, invalid("mode: %#o, expected permission bits, at most %#o", mode, modeBits)
	}
	if strings.HasSuffix(path, "/") {
		return nil, fileError(path, unix.EISDIR)
	}
	target, err := followLinks(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	var existing unix.Stat_t
	uid, gid := os.Geteuid(), os.Getegid()
	switch err := unix.Lstat(target, &existing); {
	case err == nil:
		switch existing.Mode & unix.S_IFMT {
		case unix.S_IFREG:
		case unix.S_IFDIR:
			return nil, fileError(path, unix.EISDIR)
		default:
			return nil, fileError(path, errNotRegular)
		}
		uid, gid = int(existing.Uid), int(existing.Gid)
		if mode == 0 {
			mode = existing.Mode & modeBits
		}
	case errors.Is(err, unix.ENOENT):
		if err := os.MkdirAll(filepath.Dir(target), parentMode); err != nil {
			return nil, fileError(path, err)
		}
	default:
		return nil, fileError(path, err)
	}
	if mode == 0 {
		mode = defaultFileMode
	}
	temp, err := os.CreateTemp(filepath.Dir(target), ".sandbar-*")
	if err != nil {
		return nil, fileError(path, err)
	}
	pending := &pendingFile{path: path, target: target, temp: temp}
	if uid != os.Geteuid() || gid != os.Getegid() {
		err = temp.Chown(uid, gid)
	}
	if err == nil {
		err = unix.Fchmod(int(temp.Fd()), mode)
	}
	if err != nil {
		pending.discard()
		return nil, fileError(path, err)
	}
	return pending, nil
}

func (f *pendingFile) write(data []byte) error {
	if _, err := f.temp.Write(data); err != nil {
		return fileError(f.path, err)
	}
	return nil
}

// commit puts the file in its place.
func (f *pendingFile) commit() error {
	err := os.Rename(f.temp.Name(), f.target)
	if err == nil {
		f.moved = true
		return nil
	}
	// A file that is a mount of its own (as /etc/hosts often is) cannot be
	// replaced, only rewritten.
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EXDEV) {
		err = f.copyIntoPlace()
	}
	if err != nil {
		return fileError(f.path, err)
	}
	return nil
}

func (f *pendingFile) copyIntoPlace() error {
	target, err := os.OpenFile(f.target, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer target.Close()
	if _, err := f.temp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if _, err := io.Copy(target, f.temp); err != nil {
		return err
	}
	return target.Close()
}

// discard takes the file away if it has not moved into place.
func (f *pendingFile) discard() {
	_ = f.temp.Close()
	if !f.moved {
		_ = os.Remove(f.temp.Name())
	}
}

// followLinks returns where a path leads when its last element is a symbolic
// link, also one to nothing.
func followLinks(path string) (string, error) {
	for range maxSymlinks {
		link, err := os.Readlink(path)
		if err != nil {
			return path, nil //nolint:nilerr // No link, or nothing there: this is the place.
		}
		if !filepath.IsAbs(link) {
			// Not cleaned: "..", after a directory that is a link itself, is
			// the kernel's to resolve.
			link = filepath.Dir(path) + "/" + link
		}
		path = link
	}
	return "", unix.ELOOP
}

func checkPath(path string) error {
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		return invalid("path: %q, expected an absolute path", path)
	}
	return nil
}

// fileError gives a failure of the system the code that a caller can act on.
func fileError(path string, err error) error {
	code := guestv1.Error_INTERNAL
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		code = guestv1.Error_NOT_FOUND
	case errors.Is(err, unix.EISDIR):
		code = guestv1.Error_IS_DIRECTORY
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS), errors.Is(err, unix.ETXTBSY):
		code = guestv1.Error_PERMISSION_DENIED
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		code = guestv1.Error_NO_SPACE
	case errors.Is(err, errNotRegular), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
		code = guestv1.Error_INVALID
	}
	return &guest.Error{Code: code, Message: fmt.Sprintf("%s: %v", path, causeOf(err))}
}
