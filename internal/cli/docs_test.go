package cli_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbar-project/sandbar/internal/cli"
	"github.com/sandbar-project/sandbar/internal/cli/invocation"
	"github.com/sandbar-project/sandbar/internal/cli/iostreams"
)

var updateDocs = flag.Bool("update", false, "write the list of commands in docs/cli.md")

const (
	repository = "../.."
	cliPage    = repository + "/docs/cli.md"
)

// pages reads every page of the repository, by its path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(repository, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != repository && (strings.HasPrefix(entry.Name(), ".") || slices.Contains([]string{"build", "bin"}, entry.Name())):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		found[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	span    = regexp.MustCompile("`[^`\n]+`")
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the fragments by which a page's headings can be linked.
func anchors(page string) []string {
	var all []string
	for _, found := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		all = append(all, strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(found[1]), ""), " ", "-"))
	}
	return all
}

func TestEveryLinkOfThePagesLeadsSomewhere(t *testing.T) {
	all := pages(t)
	for path, text := range all {
		for _, found := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target, fragment, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: the link to %s leads nowhere: %v", path, found[1], err)
				continue
			}
			if fragment != "" && !slices.Contains(anchors(all[file]), fragment) {
				t.Errorf("%s: the link to %s leads to no heading", path, found[1])
			}
		}
	}
}

// tree is the command and all below it, as a user meets it.
func tree() *cobra.Command {
	root := cli.New(&invocation.Invocation{IO: iostreams.Buffers(nil, nil, nil), Now: time.Now, Getenv: func(string) string { return "" }})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("sandbar")
	return root
}

func visit(command *cobra.Command, do func(*cobra.Command)) {
	command.InitDefaultHelpFlag()
	do(command)
	for _, below := range command.Commands() {
		visit(below, do)
	}
}

// reference is the list of commands and flags in docs/cli.md.
func reference() string {
	var out strings.Builder
	fmt.Fprintln(&out, "| command | flags |\n|---|---|")
	root := tree()
	fmt.Fprintf(&out, "| all | %s |\n", flags(root.PersistentFlags()))
	visit(root, func(command *cobra.Command) {
		generated := command.Name() == "help" || command.HasParent() && command.Parent().Name() == "completion"
		if command.Runnable() && !command.Hidden && !command.HasSubCommands() && !generated {
			fmt.Fprintf(&out, "| `%s` | %s |\n", strings.TrimPrefix(command.CommandPath(), "sandbar "), flags(command.LocalNonPersistentFlags()))
		}
	})
	return out.String()
}

func flags(set *pflag.FlagSet) string {
	var names []string
	set.VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Hidden || f.Name == "help":
		case f.Shorthand != "":
			names = append(names, fmt.Sprintf("`-%s` `--%s`", f.Shorthand, f.Name))
		default:
			names = append(names, "`--"+f.Name+"`")
		}
	})
	return strings.Join(names, ", ")
}

func TestTheCommandLinePageListsEveryCommandAndFlag(t *testing.T) {
	const begin = "This list is printed from the code: `go test ./internal/cli -run CommandLinePage -update`.\n\n"
	page, err := os.ReadFile(cliPage)
	if err != nil {
		t.Fatal(err)
	}
	text, listed, found := strings.Cut(string(page), begin)
	if !found {
		t.Fatalf("docs/cli.md has no line %q", begin)
	}
	if *updateDocs {
		listed = reference()
		if err := os.WriteFile(cliPage, []byte(text+begin+listed), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(reference(), listed); diff != "" {
		t.Errorf("docs/cli.md is stale; run go test ./internal/cli -run CommandLinePage -update (-want +got):\n%s", diff)
	}
}

// calls finds the command lines of sandbar in a page's code.
func calls(page string) [][]string {
	var code []string
	for _, block := range fence.FindAllString(page, -1) {
		code = append(code, strings.Split(strings.ReplaceAll(block, "\\\n", " "), "\n")...)
	}
	code = append(code, span.FindAllString(fence.ReplaceAllString(page, ""), -1)...)
	var all [][]string
	for _, line := range code {
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" `()", r) })
		for i, word := range words {
			if word == "sandbar" || word == "bin/sandbar" {
				all = append(all, words[i+1:])
			}
		}
	}
	return all
}

// misuse says what of a command line does not exist; empty when all does.
func misuse(command *cobra.Command, words []string) string {
	var named []string
	arguments := 0
	for _, word := range words {
		below, _, err := command.Find([]string{word})
		switch {
		case word == "--" || strings.ContainsAny(word, "|│;&<>#…") || arguments == 2:
			words = nil
		case strings.HasPrefix(word, "-"):
			named = append(named, strings.TrimRight(strings.SplitN(word, "=", 2)[0], ".,:"))
			continue
		case arguments == 0 && err == nil && below != command:
			command = below
			continue
		case command.HasSubCommands() && arguments == 0:
			return fmt.Sprintf("%s has no command %q", command.CommandPath(), word)
		default:
			arguments++
			continue
		}
		if words == nil {
			break
		}
	}
	command.InitDefaultHelpFlag()
	for _, name := range named {
		flag := command.Flag(strings.TrimLeft(name, "-"))
		if !strings.HasPrefix(name, "--") {
			flag = command.Flags().ShorthandLookup(name[1:2])
			if flag == nil {
				flag = command.InheritedFlags().ShorthandLookup(name[1:2])
			}
		}
		if flag == nil {
			return fmt.Sprintf("%s has no flag %s", command.CommandPath(), name)
		}
	}
	return ""
}

func TestThePagesUseOnlyCommandsAndFlagsThatExist(t *testing.T) {
	checked := 0
	for path, text := range pages(t) {
		for _, words := range calls(text) {
			checked++
			if wrong := misuse(tree(), words); wrong != "" {
				t.Errorf("%s: sandbar %s: %s", path, strings.Join(words, " "), wrong)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d command lines were found", checked)
	}
	for words, want := range map[string]string{
		"sandbox lst":                    `sandbar sandbox has no command "lst"`,
		"run --no-such-flag busybox":     "sandbar run has no flag --no-such-flag",
		"sandbox exec ID -x -- true":     "sandbar sandbox exec has no flag -x",
		"sandbox exec -t ID -- ls -x":    "",
		"run busybox:1 sh -c 'sleep 1'":  "",
		"runner get --endpoint URL":      "",
		"sandbox list | grep --no-such ": "",
	} {
		if got := misuse(tree(), strings.Fields(words)); got != want {
			t.Errorf("misuse of %q = %q, want %q", words, got, want)
		}
	}
}
