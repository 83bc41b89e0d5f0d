package dev

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ready is a set of options with which every check passes.
func ready(t *testing.T) Options {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("sandbar dev needs root, and so do its checks")
	}
	directory := t.TempDir()
	for _, name := range []string{"runc", "fake-guest"} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", directory)
	return Options{
		DataDir: filepath.Join(directory, "data"),
		Listen:  "127.0.0.1:0",
		Runtime: "runc",
		Guest:   filepath.Join(directory, "fake-guest"),
	}
}

func TestEachCheckSaysWhatToDoAndChangesNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		spoil func(*Options)
		want  string
	}{
		"runtime that is not there":     {func(o *Options) { o.Runtime = "runsc" }, "install it, or choose another with --runtime"},
		"runtime of another name":       {func(o *Options) { o.Runtime = "/usr/bin/docker" }, "it must be one of runsc, crun, runc"},
		"guest that is not there":       {func(o *Options) { o.Guest += "-gone" }, "name it with --guest"},
		"guest that is no program":      {func(o *Options) { o.Guest = "/etc/passwd" }, "name it with --guest"},
		"port in use":                   {func(o *Options) { o.Listen = taken.Addr().String() }, "choose another port with --listen"},
		"address of all interfaces":     {func(o *Options) { o.Listen = "0.0.0.0:0" }, "must be of this machine's loopback"},
		"address without a port":        {func(o *Options) { o.Listen = "127.0.0.1" }, "like 127.0.0.1:8080"},
		"mirror without a registry":     {func(o *Options) { o.RegistryMirrors = []string{"http://127.0.0.1:5000"} }, "docker.io=http"},
		"data directory that is a file": {func(o *Options) { o.DataDir = o.Guest + "/data" }, "choose another --data-dir"},
	} {
		t.Run(name, func(t *testing.T) {
			options := ready(t)
			c.spoil(&options)
			_, err := check(t.Context(), options)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("check = %v, want something with %q", err, c.want)
			}
			if _, err := os.Stat(options.DataDir); err == nil {
				t.Error("the data directory was made")
			}
		})
	}
}

func TestChecksPass(t *testing.T) {
	options := ready(t)
	found, err := check(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	if found.guest != options.Guest || found.runtime != options.Runtime || !filepath.IsAbs(found.sandbar) {
		t.Errorf("found %+v", found)
	}
}

func TestWithoutARuntimeTheErrorNamesThemAll(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := exec.LookPath("runc"); err == nil {
		t.Fatal("PATH was not changed")
	}
	err := checkRuntime("")
	if err == nil || !strings.Contains(err.Error(), "runsc, crun, runc") {
		t.Errorf("checkRuntime = %v", err)
	}
}

func TestASecondProcessIsRefusedUntilTheFirstEnds(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "data")
	first, err := acquire(directory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := acquire(directory); err == nil || !strings.Contains(err.Error(), "another sandbar dev works on "+directory) {
		t.Errorf("second acquire = %v", err)
	}
	if err := checkUnused(directory); err == nil {
		t.Error("the directory counts as unused")
	}
	first.release()
	again, err := acquire(directory)
	if err != nil {
		t.Fatalf("acquire after release: %v", err)
	}
	again.release()
}

func TestTheEnvironmentFileIsPrivateAndIsReadBack(t *testing.T) {
	directory := t.TempDir()
	env, err := readEnvironment(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range variables {
		env.values[name] = "value of " + name
	}
	if err := env.write(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(env.path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v", info.Mode())
	}
	again, err := readEnvironment(directory)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range variables {
		if again.values[name] != env.values[name] {
			t.Errorf("%s = %q, want %q", name, again.values[name], env.values[name])
		}
	}
	out, err := exec.Command("sh", "-c", `. "$1"; printf %s "$TF_VAR_zone"`, "sh", env.path).Output()
	if err != nil || string(out) != "value of TF_VAR_zone" {
		t.Errorf("a shell reads %q, %v", out, err)
	}
}
