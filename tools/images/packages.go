package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// packageCache is where fetched packages are kept between runs.
func packageCache() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	directory := filepath.Join(base, "sandbar", "packages")
	return directory, os.MkdirAll(directory, 0o755)
}

// fetch makes the packages available and returns their files in the order
// asked for.
func fetch(ctx context.Context, names []string) ([]string, error) {
	directory, err := packageCache()
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range names {
		if _, err := cached(directory, name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q"}, missing...)...)
		cmd.Dir = directory
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("fetch %s (apt-get download; run `apt-get update` first, and note that the python image needs Debian 12): %w\n%s",
				strings.Join(missing, " "), err, out)
		}
	}
	paths := make([]string, len(names))
	for i, name := range names {
		if paths[i], err = cached(directory, name); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// cached finds the newest file of a package.
func cached(directory, name string) (string, error) {
	matches, err := filepath.Glob(filepath.Join(directory, name+"_*.deb"))
	if err != nil {
		return "", err
	}
	if len(matches) == 0 {
		return "", fmt.Errorf("package %s: %w", name, os.ErrNotExist)
	}
	return matches[len(matches)-1], nil
}

// walkPackage calls visit for every entry of a package's file system, with the
// name cleaned and moved to where a merged /usr has it.
func walkPackage(ctx context.Context, path string, visit func(*tar.Header, io.Reader) error) (err error) {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("read package %s: %w", filepath.Base(path), err)
	}
	defer func() {
		if e := cmd.Wait(); e != nil && err == nil {
			err = fmt.Errorf("read package %s: %w: %s", filepath.Base(path), e, stderr.String())
		}
	}()
	reader := tar.NewReader(stdout)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, stdout)
			return err
		}
		if err != nil {
			return fmt.Errorf("read package %s: %w", filepath.Base(path), err)
		}
		header.Name = merged(header.Name)
		if header.Typeflag == tar.TypeLink {
			header.Linkname = merged(header.Linkname)
		}
		if err := visit(header, reader); err != nil {
			return err
		}
	}
}

// merged cleans a name and moves /bin, /sbin, /lib and /lib64 below /usr.
func merged(name string) string {
	name = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(name, "."), "/"), "/")
	first, rest, nested := strings.Cut(name, "/")
	switch first {
	case "bin", "sbin", "lib", "lib64":
		if nested {
			return "usr/" + first + "/" + rest
		}
		return "usr/" + first
	}
	return name
}

// packageFile reads one file out of a package.
func packageFile(ctx context.Context, name, path string) ([]byte, error) {
	files, err := fetch(ctx, []string{name})
	if err != nil {
		return nil, err
	}
	var content []byte
	err = walkPackage(ctx, files[0], func(header *tar.Header, r io.Reader) error {
		if header.Name != path {
			return nil
		}
		content, err = io.ReadAll(r)
		return err
	})
	if err == nil && content == nil {
		err = fmt.Errorf("package %s has no %s", name, path)
	}
	return content, err
}

// temporaryExecutable writes a program to run once. Its name matters to
// programs that look at how they were called.
func temporaryExecutable(name string, binary []byte) (path string, remove func(), err error) {
	directory, err := os.MkdirTemp("", "sandbar-images-")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(directory, name)
	if err := os.WriteFile(path, binary, 0o700); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(directory))
	}
	return path, func() { _ = os.RemoveAll(directory) }, nil
}
