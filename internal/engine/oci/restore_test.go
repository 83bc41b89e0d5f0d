package oci

import (
	"context"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/sandbar-project/sandbar/internal/engine"
)

func TestTheNextStartRestoresTheFirewall(t *testing.T) {
	requireRuntime(t, "runc")
	config := testConfig(t, "runc", buildGuest(t))
	config.Resolvers = []netip.Addr{netip.MustParseAddr("198.51.100.53")}
	e := newTestEngine(t, config)
	t.Cleanup(func() {
		if err := e.Uninstall(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Uninstall: %v", err)
		}
	})
	image := pullTestImage(t, e)
	for id, network := range map[string]engine.Network{
		"both":   {DNS: true, Egress: []engine.EgressRule{{Any: true}, {Prefix: netip.MustParsePrefix("203.0.113.0/24")}}},
		"egress": {Egress: []engine.EgressRule{{Any: true, Ports: []engine.PortRange{{Protocol: "TCP", First: 443, Last: 443}}}}},
		"none":   {},
		"ended":  {DNS: true},
	} {
		if err := e.Create(t.Context(), engine.Spec{ID: id, ImageDigest: image.Digest, Network: network}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Remove(context.WithoutCancel(t.Context()), id); err != nil {
				t.Error(err)
			}
		})
	}
	_, ended, err := e.existing("ended")
	if err != nil {
		t.Fatal(err)
	}
	if err := e.firewall.revoke("ended", ended.Address); err != nil {
		t.Fatal(err)
	}
	if err := ended.Process.kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := describeFirewall(t, e.firewall)

	// What another tool's flush does to this table.
	if err := e.firewall.uninstall(); err != nil {
		t.Fatal(err)
	}
	newTestEngine(t, config)
	if diff := cmp.Diff(want, describeFirewall(t, e.firewall)); diff != "" {
		t.Errorf("after a flush (-before +restored):\n%s", diff)
	}
	newTestEngine(t, config)
	if diff := cmp.Diff(want, describeFirewall(t, e.firewall)); diff != "" {
		t.Errorf("after another start (-before +restored):\n%s", diff)
	}
}

func TestAStartWithoutSandboxesMakesNoTable(t *testing.T) {
	requireRuntime(t, "runc")
	config := testConfig(t, "runc", buildGuest(t))
	e := newTestEngine(t, config)
	t.Cleanup(func() {
		if err := e.Uninstall(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if described := describeFirewall(t, e.firewall); len(described) > 0 {
		t.Errorf("there is %v", described)
	}
}

// describeFirewall says what is in each chain, set and map of the table.
func describeFirewall(t *testing.T, f *firewall) map[string][]string {
	t.Helper()
	conn, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	described := map[string][]string{}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		t.Fatal(err)
	}
	for _, chain := range chains {
		if chain.Table.Name != f.table {
			continue
		}
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			t.Fatal(err)
		}
		name := "chain " + chain.Name
		described[name] = []string{}
		for _, rule := range rules {
			described[name] = append(described[name], describeRule(t, rule))
		}
	}
	if len(described) == 0 {
		return described
	}
	s := sets(f.nftTable())
	for _, set := range []*nftables.Set{s.addresses, s.dns, s.resolvers, s.internal, s.egress} {
		elements, err := conn.GetSetElements(set)
		if err != nil {
			t.Fatal(err)
		}
		name := "set " + set.Name
		described[name] = []string{}
		for _, element := range elements {
			text := hex.EncodeToString(element.Key)
			if element.VerdictData != nil {
				text += " " + element.VerdictData.Chain
			}
			described[name] = append(described[name], text)
		}
		slices.Sort(described[name])
	}
	return described
}

func describeRule(t *testing.T, rule *nftables.Rule) string {
	t.Helper()
	var text string
	for _, e := range rule.Exprs {
		data, err := expr.MarshalExprData(byte(nftables.TableFamilyINet), e)
		if err != nil {
			t.Fatal(err)
		}
		text += hex.EncodeToString(data) + " "
	}
	return text
}
