package sqlite

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

// How much is allocated ahead to each of the database's files. The log starts
// over after about 4 MiB; only while the database itself cannot grow does it go
// on, and then it has room for thousands of changes.
const (
	databaseHeadroomBytes = 16 << 20
	logHeadroomBytes      = 48 << 20
	// indexHeadroomBytes is for the index of a log of that size: 32 KiB for each
	// 16 MiB.
	indexHeadroomBytes = 128 << 10
)

// headroom is disk space that belongs to the database's files already, beyond
// their ends. When the disk is full, what ends or deletes something can still be
// stored; what adds something is refused before it would use the rest up.
// Unlike a file that is removed in need, nobody else can take it.
//
// What is allocated to the database's own file makes sure that everything in
// the log finds its place there. SQLite gives back the rest when it has copied
// the log.
type headroom struct {
	mu sync.Mutex
	// They are open as long as SQLite has the same files open: closing any
	// descriptor of a file drops all of the process's locks on it (fcntl(2)).
	database, log, index *os.File
	// unsupported: the file system cannot allocate ahead.
	unsupported bool
	logger      *slog.Logger
}

// openHeadroom opens the files beside the database and reserves what it can
// get: a server has to start on a full disk, too.
func openHeadroom(database *os.File, logger *slog.Logger) (*headroom, error) {
	log, err := os.OpenFile(database.Name()+"-wal", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the database's log: %w", err)
	}
	index, err := os.OpenFile(database.Name()+"-shm", os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the index of the database's log: %w", err), log.Close())
	}
	h := &headroom{database: database, log: log, index: index, logger: logger}
	if err := h.ensure(); isFull(err) {
		logger.Warn("the disk of the database is full: nothing can be added until there is room", "path", database.Name())
	} else if err != nil {
		return nil, errors.Join(err, log.Close(), index.Close())
	}
	return h, nil
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// admit answers nil when there is room to add something and still to delete it.
func (h *headroom) admit() error {
	err := h.ensure()
	if isFull(err) {
		return apierr.New(apierr.StorageFull,
			"the disk of the server's data directory is full, so nothing new is accepted and nothing was changed; "+
				"deleting sandboxes still works and frees what they wrote, and so does pruning images; or free space on that disk otherwise").
			Because(err)
	}
	return err
}

// ensure makes sure that at least half of the headroom is there; otherwise it
// answers with the error of the allocation.
func (h *headroom) ensure() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unsupported {
		return nil
	}
	database, err := h.database.Stat()
	if err != nil {
		return fmt.Errorf("measure the database: %w", err)
	}
	for _, reserved := range []struct {
		file        *os.File
		from, bytes int64
	}{
		{h.log, 0, logHeadroomBytes},
		{h.index, 0, indexHeadroomBytes},
		{h.database, database.Size(), databaseHeadroomBytes},
	} {
		err := reserve(reserved.file, reserved.from+reserved.bytes/2, reserved.from+reserved.bytes)
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			h.unsupported = true
			h.logger.Warn("the file system of the database cannot reserve space: when it is full, nothing can be deleted either", "path", h.database.Name())
			return nil
		}
		if err != nil {
			return fmt.Errorf("reserve space for %s: %w", reserved.file.Name(), err)
		}
	}
	return nil
}

// reserve allocates up to the end that is wanted, unless enough is allocated.
func reserve(file *os.File, enough, wanted int64) error {
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return err
	}
	const blockBytes = 512 // stat(2)
	if status.Blocks*blockBytes >= enough {
		return nil
	}
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, wanted)
}

func (h *headroom) close() error {
	return errors.Join(h.index.Close(), h.log.Close(), h.database.Close())
}
