package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	guestv1 "github.com/sandbar-project/sandbar/api/sandbar/guest/v1"
)

const (
	defaultPath     = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultTerminal = "xterm"
	passwdPath      = "/etc/passwd"
	groupPath       = "/etc/group"
	// A user database larger than this is not looked at to its end.
	maxDatabaseBytes = 4 << 20

	// Exit codes of a shell for a program it cannot run.
	exitNotFound      = 127
	exitCannotExecute = 126
)

// cannotExecuteError is why a process cannot be started although the call makes
// sense.
type cannotExecuteError struct {
	// code is exitNotFound or exitCannotExecute.
	code    int32
	message string
}

func (e *cannotExecuteError) Error() string { return e.message }

func notExecutable(format string, args ...any) error {
	return &cannotExecuteError{code: exitCannotExecute, message: fmt.Sprintf(format, args...)}
}

// program is a process that can be started: everything of the request looked
// up in the sandbox.
type program struct {
	path string
	argv []string
	env  []string
	dir  string
	// credential is nil when the guest's own are the right ones.
	credential *syscall.Credential
	uid, gid   int
}

// newProgram looks up what p names. Its error is an invalid call or a
// *cannotExecuteError.
func newProgram(p *guestv1.Process) (*program, error) {
	if err := validate(p); err != nil {
		return nil, err
	}
	account, err := lookUpUser(p.GetUser())
	if err != nil {
		return nil, err
	}
	prog := &program{argv: p.GetArgv(), dir: p.GetCwd(), uid: account.Uid, gid: account.Gid}
	if prog.dir == "" {
		prog.dir = "/"
	}
	info, err := os.Stat(prog.dir)
	if err != nil {
		return nil, notExecutable("working directory %q: %v", prog.dir, causeOf(err))
	}
	if !info.IsDir() {
		return nil, notExecutable("working directory %q: not a directory", prog.dir)
	}
	prog.env = environment(p.GetEnv(), account.Home, p.GetTty())
	prog.credential = credentialOf(account)
	prog.path, err = lookUpProgram(p.GetArgv()[0], prog.dir, valueOf(prog.env, "PATH"))
	if err != nil {
		return nil, err
	}
	return prog, nil
}

func validate(p *guestv1.Process) error {
	if len(p.GetArgv()) == 0 || p.GetArgv()[0] == "" {
		return invalid("process.argv: empty, expected a program and its arguments")
	}
	for i, arg := range p.GetArgv() {
		if strings.IndexByte(arg, 0) >= 0 {
			return invalid("process.argv[%d]: holds a NUL byte", i)
		}
	}
	for i, entry := range p.GetEnv() {
		if strings.IndexByte(entry, 0) >= 0 {
			return invalid("process.env[%d]: holds a NUL byte", i)
		}
		if strings.IndexByte(entry, '=') <= 0 {
			return invalid("process.env[%d]: expected NAME=value", i)
		}
	}
	if cwd := p.GetCwd(); cwd != "" && !filepath.IsAbs(cwd) || strings.IndexByte(cwd, 0) >= 0 {
		return invalid("process.cwd: %q, expected an absolute path", cwd)
	}
	return nil
}

// environment keeps the last value of each name and adds what programs expect
// to find.
func environment(entries []string, home string, tty bool) []string {
	env := make([]string, 0, len(entries)+3)
	place := make(map[string]int, len(entries))
	for _, entry := range entries {
		name, _, _ := strings.Cut(entry, "=")
		if i, ok := place[name]; ok {
			env[i] = entry
			continue
		}
		place[name] = len(env)
		env = append(env, entry)
	}
	add := func(name, value string) {
		if _, ok := place[name]; !ok {
			env = append(env, name+"="+value)
		}
	}
	add("PATH", defaultPath)
	add("HOME", home)
	if tty {
		add("TERM", defaultTerminal)
	}
	return env
}

func valueOf(env []string, name string) string {
	for _, entry := range env {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value
		}
	}
	return ""
}

// lookUpProgram finds a program as execvp(3) does, in the environment that it
// will run in.
func lookUpProgram(name, dir, path string) (string, error) {
	if strings.Contains(name, "/") {
		location := name
		if !filepath.IsAbs(name) {
			location = filepath.Join(dir, name)
		}
		if err := checkProgram(location); err != nil {
			return "", executeError(name, err)
		}
		return location, nil
	}
	failure := error(unix.ENOENT)
	for _, element := range filepath.SplitList(path) {
		if !filepath.IsAbs(element) {
			element = filepath.Join(dir, element)
		}
		location := filepath.Join(element, name)
		err := checkProgram(location)
		if err == nil {
			return location, nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			failure = err
		}
	}
	if errors.Is(failure, unix.ENOENT) {
		return "", &cannotExecuteError{code: exitNotFound, message: fmt.Sprintf("%s: not found in PATH (%s)", name, path)}
	}
	return "", executeError(name, failure)
}

func checkProgram(location string) error {
	info, err := os.Stat(location)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return unix.EISDIR
	case info.Mode()&0o111 == 0:
		return unix.EACCES
	default:
		return nil
	}
}

// executeError says why name cannot be run.
func executeError(name string, err error) error {
	cause := causeOf(err)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return &cannotExecuteError{code: exitNotFound, message: fmt.Sprintf("%s: %v", name, cause)}
	case errors.Is(err, unix.EAGAIN):
		return notExecutable("%s: the sandbox's limit of processes is reached", name)
	default:
		return notExecutable("%s: cannot execute: %v", name, cause)
	}
}

// lookUpUser reads the image's own user database, as far as the name needs it.
func lookUpUser(spec string) (*user.ExecUser, error) {
	passwd, err := readDatabase(passwdPath)
	if err != nil {
		return nil, err
	}
	group, err := readDatabase(groupPath)
	if err != nil {
		return nil, err
	}
	account, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, passwd, group)
	if err != nil {
		return nil, notExecutable("user %q: %v", spec, err)
	}
	if account.Home == "" {
		account.Home = "/"
	}
	return account, nil
}

func readDatabase(path string) (io.Reader, error) {
	file, err := openRegular(path)
	if errors.Is(err, os.ErrNotExist) {
		return bytes.NewReader(nil), nil
	}
	if err != nil {
		return nil, notExecutable("%s: %v", path, causeOf(err))
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxDatabaseBytes))
	if err != nil {
		return nil, notExecutable("%s: %v", path, causeOf(err))
	}
	return bytes.NewReader(content), nil
}

// credentialOf is nil when nothing has to change, which works even in a
// sandbox without the capabilities to change it.
func credentialOf(account *user.ExecUser) *syscall.Credential {
	groups := make([]uint32, 0, len(account.Sgids)+1)
	for _, gid := range append([]int{account.Gid}, account.Sgids...) {
		if id := uint32(gid); !slices.Contains(groups, id) {
			groups = append(groups, id)
		}
	}
	current, err := os.Getgroups()
	same := err == nil && account.Uid == os.Geteuid() && account.Gid == os.Getegid()
	for _, gid := range groups[1:] {
		same = same && slices.Contains(current, int(gid))
	}
	for _, gid := range current {
		same = same && slices.Contains(groups, uint32(gid))
	}
	if same {
		return nil
	}
	return &syscall.Credential{Uid: uint32(account.Uid), Gid: uint32(account.Gid), Groups: groups}
}

// run starts the program in a session of its own. With a terminal, files are
// three times its end and it becomes the controlling one.
func (p *program) run(r *reaper, files [3]int, terminal bool) (*process, error) {
	for _, fd := range files {
		if p.uid != 0 {
			// So that the program may open /dev/stdout and the like again.
			p.giveToUser(fd)
		}
	}
	started, err := r.start(p.path, p.argv, &syscall.ProcAttr{
		Dir:   p.dir,
		Env:   p.env,
		Files: []uintptr{uintptr(files[0]), uintptr(files[1]), uintptr(files[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: terminal, Credential: p.credential},
	})
	if err != nil && !errors.Is(err, errRefused) {
		if errors.Is(err, unix.ENOENT) {
			// The program itself was there.
			return nil, &cannotExecuteError{code: exitNotFound, message: p.argv[0] + ": its interpreter does not exist"}
		}
		return nil, executeError(p.argv[0], err)
	}
	return started, err
}

func (p *program) giveToUser(fd int) {
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) != nil {
		return
	}
	isDevNull := stat.Mode&unix.S_IFMT == unix.S_IFCHR && unix.Major(stat.Rdev) == 1
	if !isDevNull {
		_ = unix.Fchown(fd, p.uid, p.gid)
	}
}

// causeOf strips the operation and path that the message names already.
func causeOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
