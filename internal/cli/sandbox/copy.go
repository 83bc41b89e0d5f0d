package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/internal/apierr"
	"github.com/sandbar-project/sandbar/internal/cli/attach"
	"github.com/sandbar-project/sandbar/internal/cli/client"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
)

// unaryBytes is the most that the API reads or writes in one call; larger files
// go through a command in the sandbox.
const unaryBytes = 32 << 20

func newCopy(call *invocation.Invocation) *cobra.Command {
	return &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy a file into a sandbox, or out of one",
		Long: `Copy a file into a sandbox, or out of one. One of SOURCE and DESTINATION is
SANDBOX:/path, the other a file here, or - for standard input or output. A
destination that ends in / (or is a directory here) keeps the file's name.
Missing directories in the sandbox are made.

Up to 32 MiB nothing is needed in the image. Larger files go through /bin/sh and
cat in the sandbox. Directories are not copied: send a tar archive through exec.`,
		Example: `  sandbar sandbox cp data.csv $ID:/work/data.csv
  sandbar sandbox cp $ID:/work/result.json .
  sandbar sandbox cp $ID:/var/log/app.log - | grep error
  tar c src | sandbar sandbox exec -i $ID -- tar x -C /work`,
		Args: invocation.Args(cobra.ExactArgs(2)),
		RunE: func(command *cobra.Command, args []string) error {
			return runCopy(command.Context(), call, args[0], args[1])
		},
	}
}

// place is one end of a copy.
type place struct {
	// Sandbox is empty for a place here.
	Sandbox string
	Path    string
}

// parsePlace reads SANDBOX:/path. What has a slash or nothing before the colon
// is a place here, as is a path without a colon.
func parsePlace(text string) place {
	sandbox, file, remote := strings.Cut(text, ":")
	if !remote || sandbox == "" || strings.ContainsAny(sandbox, `/\.`) {
		return place{Path: text}
	}
	return place{Sandbox: sandbox, Path: file}
}

func runCopy(ctx context.Context, call *invocation.Invocation, sourceText, destinationText string) error {
	source, destination := parsePlace(sourceText), parsePlace(destinationText)
	if (source.Sandbox == "") == (destination.Sandbox == "") {
		return invocation.Usagef("exactly one of %q and %q must be in a sandbox: SANDBOX:/path", sourceText, destinationText)
	}
	remote := source
	if destination.Sandbox != "" {
		remote = destination
	}
	if !path.IsAbs(remote.Path) {
		return invocation.Usagef("%s:%s: the path in a sandbox must begin with /", remote.Sandbox, remote.Path)
	}
	server, err := call.Client(client.Sandboxes)
	if err != nil {
		return err
	}
	defer server.Close()
	interrupts := iostreams.CatchInterrupts(ctx)
	defer interrupts.Stop()
	copier := copier{call: call, sandboxes: server.Sandboxes}
	if destination.Sandbox != "" {
		return copier.upload(interrupts.Work, source.Path, destination)
	}
	return copier.download(interrupts.Work, source, destination.Path)
}

type copier struct {
	call      *invocation.Invocation
	sandboxes sandboxv1connect.SandboxServiceClient
}

func (c copier) upload(ctx context.Context, source string, destination place) error {
	input := c.call.IO.In
	if source != "-" {
		file, err := os.Open(source)
		if err != nil {
			return fmt.Errorf("open the file to copy: %w", err)
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return fmt.Errorf("look at the file to copy: %w", err)
		}
		if info.IsDir() {
			return invocation.Usagef("%s is a directory; send an archive: tar c -C %s . | sandbar sandbox exec -i %s -- tar x -C %s",
				source, source, destination.Sandbox, destination.Path)
		}
		input = file
	}
	if strings.HasSuffix(destination.Path, "/") {
		if source == "-" {
			return invocation.Usagef("standard input has no name: give the whole path instead of %s", destination.Path)
		}
		destination.Path += filepath.Base(source)
	}
	head, err := io.ReadAll(io.LimitReader(input, unaryBytes+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", source, err)
	}
	if len(head) <= unaryBytes {
		_, err := c.sandboxes.WriteFile(ctx, &sandboxv1.WriteFileRequest{
			SandboxId: destination.Sandbox, Path: destination.Path, Content: head,
		})
		if apierr.ReasonOf(err) != apierr.FileTooLarge {
			return err
		}
	}
	return c.uploadByCommand(ctx, io.MultiReader(bytes.NewReader(head), input), destination)
}

// uploadScript writes its input to the file $2 beside the destination $1 and
// prints the size before it takes the destination's place, so that a copy that
// breaks off changes nothing.
const uploadScript = `set -e
if [ -d "$1" ]; then echo "$1 is a directory; end it with / to copy into it" >&2; exit 1; fi
mkdir -p -- "${1%/*}/"
trap 'rm -f -- "$2"' EXIT
cat > "$2"
wc -c < "$2"
mv -f -- "$2" "$1"`

// cleanupTimeout is how long is tried to remove what a broken copy has left in
// a sandbox.
const cleanupTimeout = 5 * time.Second

func (c copier) uploadByCommand(ctx context.Context, input io.Reader, destination place) error {
	counted := &countingReader{reader: input}
	var printed bytes.Buffer
	directory, name := path.Split(destination.Path)
	part := directory + partPattern(name, uuid.NewString())
	if err := c.command(ctx, counted, &printed, destination.Sandbox, "/bin/sh", "-c", uploadScript, "sh", destination.Path, part); err != nil {
		var interrupted *attach.InterruptedError
		if !errors.As(err, &interrupted) {
			return err
		}
		// A command that is killed cannot tidy up after itself.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, c.removePart(cleanup, destination.Sandbox, part))
	}
	written, err := strconv.ParseInt(strings.TrimSpace(printed.String()), 10, 64)
	if err != nil || written != counted.count {
		return fmt.Errorf("copy to %s: %d bytes were sent, but the sandbox reports %q", destination.Path, counted.count, strings.TrimSpace(printed.String()))
	}
	return nil
}

// removePart removes a part of a copy, unless the sandbox has gone too.
func (c copier) removePart(ctx context.Context, sandbox, part string) error {
	err := c.command(ctx, nil, io.Discard, sandbox, "/bin/sh", "-c", `rm -f -- "$1"`, "sh", part)
	if err == nil || connect.CodeOf(err) == connect.CodeNotFound || apierr.ReasonOf(err) == apierr.SandboxNotRunning {
		return nil
	}
	return fmt.Errorf("remove %s, which the copy has left in the sandbox: %w", part, err)
}

// partPattern is the name of a file that is not whole yet: hidden, beside the
// one that it becomes, and told apart by unique.
func partPattern(name, unique string) string { return "." + name + "." + unique + ".part" }

type countingReader struct {
	reader io.Reader
	count  int64
}

// Read is part of io.Reader.
func (r *countingReader) Read(buffer []byte) (int, error) {
	n, err := r.reader.Read(buffer)
	r.count += int64(n)
	return n, err
}

// command runs one in the sandbox; what it says on standard error becomes the
// error of its failure. input may be nil.
func (c copier) command(ctx context.Context, input io.Reader, out io.Writer, sandbox string, command ...string) error {
	var complaints bytes.Buffer
	code, err := attach.Exec(ctx, c.sandboxes, iostreams.Buffers(input, out, &complaints), attach.ExecOptions{
		SandboxID: sandbox, Command: command, Stdin: input != nil,
	})
	switch {
	case err != nil:
		return err
	case code == 126 || code == 127:
		return fmt.Errorf("files over %d MiB need /bin/sh and cat in the sandbox's image: %s", unaryBytes>>20, strings.TrimSpace(complaints.String()))
	case code != 0:
		return fmt.Errorf("the copy failed in the sandbox: %s", strings.TrimSpace(complaints.String()))
	}
	return nil
}

func (c copier) download(ctx context.Context, source place, destination string) error {
	if destination == "-" {
		return c.read(ctx, source, c.call.IO.Out)
	}
	if info, err := os.Stat(destination); strings.HasSuffix(destination, "/") || (err == nil && info.IsDir()) {
		destination = filepath.Join(destination, path.Base(source.Path))
	}
	return c.replace(destination, func(out io.Writer) error { return c.read(ctx, source, out) })
}

// replace writes a file here as a whole or not at all: a copy that breaks off
// must not leave half a file under the name. What is no file, such as
// /dev/null, is written to; a link is followed.
func (c copier) replace(destination string, write func(io.Writer) error) error {
	mode := fs.FileMode(0o644)
	info, err := os.Stat(destination)
	switch {
	case err == nil && !info.Mode().IsRegular():
		out, err := os.OpenFile(destination, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("open what to copy to: %w", err)
		}
		return errors.Join(write(out), out.Close())
	case err == nil:
		mode = info.Mode().Perm()
		if destination, err = filepath.EvalSymlinks(destination); err != nil {
			return fmt.Errorf("follow the link to copy to: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at the file to copy to: %w", err)
	}
	directory, name := filepath.Split(destination)
	// An empty directory would be the system's for temporary files.
	part, err := os.CreateTemp(filepath.Clean(directory), partPattern(name, "*"))
	if err != nil {
		return fmt.Errorf("make the file to copy to: %w", err)
	}
	err = errors.Join(write(part), part.Chmod(mode), part.Close())
	if err == nil {
		err = os.Rename(part.Name(), destination)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return nil
}

func (c copier) read(ctx context.Context, source place, out io.Writer) error {
	response, err := c.sandboxes.ReadFile(ctx, &sandboxv1.ReadFileRequest{
		SandboxId: source.Sandbox, Path: source.Path,
	})
	if apierr.ReasonOf(err) == apierr.FileTooLarge {
		return c.command(ctx, nil, out, source.Sandbox, "/bin/sh", "-c", `exec cat -- "$1"`, "sh", source.Path)
	}
	if err != nil {
		return err
	}
	if _, err := out.Write(response.GetContent()); err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	return nil
}
