package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// recipe says what goes into an image.
type recipe struct {
	// repository and tag are the name it is served under.
	repository, tag string
	packages        []string
	// files are added after the packages.
	files func(ctx context.Context) ([]file, error)
	cmd   []string
}

// file is an entry that no package ships. Exactly one of content and link is
// used; with neither it is a directory.
type file struct {
	path    string
	content []byte
	link    string
	mode    int64
}

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// recipes mirror the public images of the same names as far as the demo and
// the SDKs' defaults need them.
var recipes = []recipe{
	{
		repository: "library/python",
		tag:        "3.11",
		packages: []string{
			"base-files", "bash", "coreutils", "dash", "findutils", "grep", "sed", "tzdata", "netbase",
			"python3.11", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "media-types",
			"libacl1", "libattr1", "libbz2-1.0", "libc-bin", "libc6", "libcom-err2", "libcrypt1", "libdb5.3", "libexpat1",
			"libffi8", "libgcc-s1", "libgmp10", "libgssapi-krb5-2", "libk5crypto3", "libkeyutils1", "libkrb5-3",
			"libkrb5support0", "liblzma5", "libncursesw6", "libnsl2", "libpcre2-8-0", "libreadline8", "libselinux1",
			"libsqlite3-0", "libssl3", "libtinfo6", "libtirpc3", "libuuid1", "zlib1g",
		},
		files: pythonFiles,
		cmd:   []string{"python3"},
	},
	{
		repository: "library/busybox",
		tag:        "1",
		packages:   []string{"busybox-static"},
		files:      busyboxFiles,
		cmd:        []string{"sh"},
	},
}

// baseFiles are what every image has and package scripts would have made.
func baseFiles() []file {
	return []file{
		{path: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")},
		{path: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{path: "etc/nsswitch.conf", mode: 0o644, content: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
		{path: "root", mode: 0o700},
		{path: "tmp", mode: 0o1777},
		{path: "proc", mode: 0o555},
		{path: "sys", mode: 0o555},
		{path: "dev", mode: 0o755},
		{path: "run", mode: 0o755},
		{path: "var/tmp", mode: 0o1777},
	}
}

func pythonFiles(context.Context) ([]file, error) {
	files := append(baseFiles(),
		file{path: "usr/bin/sh", link: "dash"},
		file{path: "usr/bin/python", link: "python3.11"},
		file{path: "usr/bin/python3", link: "python3.11"},
		file{path: "workspace", mode: 0o755},
	)
	return files, nil
}

// busyboxFiles adds a link for each applet that the packaged program has.
func busyboxFiles(ctx context.Context) ([]file, error) {
	binary, err := packageFile(ctx, "busybox-static", "usr/bin/busybox")
	if err != nil {
		return nil, err
	}
	applets, err := runFromMemory(ctx, "busybox", binary, "--list")
	if err != nil {
		return nil, fmt.Errorf("list busybox's applets: %w", err)
	}
	files := baseFiles()
	for applet := range strings.FieldsSeq(applets) {
		if applet != "busybox" {
			files = append(files, file{path: "usr/bin/" + applet, link: "busybox"})
		}
	}
	return files, nil
}

// header is the tar entry of a file.
func (f file) header() *tar.Header {
	switch {
	case f.link != "":
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: f.path, Linkname: f.link, Mode: 0o777}
	case f.content != nil:
		return &tar.Header{Typeflag: tar.TypeReg, Name: f.path, Size: int64(len(f.content)), Mode: f.mode}
	}
	return &tar.Header{Typeflag: tar.TypeDir, Name: f.path + "/", Mode: f.mode}
}

// runFromMemory runs a program that is not on the disk yet.
func runFromMemory(ctx context.Context, name string, binary []byte, args ...string) (string, error) {
	path, remove, err := temporaryExecutable(name, binary)
	if err != nil {
		return "", err
	}
	defer remove()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return "", err
	}
	return out.String(), nil
}
