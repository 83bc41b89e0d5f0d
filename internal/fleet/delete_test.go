package fleet_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/apierr"
)

func TestDeleteDrainsUninstallsAndForgets(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.connect(1)
		w.remove()
		if !w.gone() {
			t.Errorf("the runner is still there: %v", w.get())
		}
		w.wantInstalled()
		if w.gateway.drained != 1 || w.cluster.uninstalls != 1 {
			t.Errorf("drained %d times, uninstalled %d times; want once each", w.gateway.drained, w.cluster.uninstalls)
		}
		w.create(&sandboxv1.Policy{})
		w.wantStatus(provisioning, 0, 1)
	})
}

func TestDeleteEndsFromEveryState(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"provisioning":             func(*world) {},
		"failed":                   func(w *world) { w.settle(6 * time.Minute) },
		"ready":                    func(w *world) { w.connect(1) },
		"ready, and disconnected":  func(w *world) { w.connect(1); w.settle(time.Minute) },
		"rolling":                  func(w *world) { w.connect(1); w.edit("two") },
		"its cluster out of reach": func(w *world) { w.cluster.change(func() { w.cluster.unreachable = true }) },
		"ready, its cluster unreachable": func(w *world) {
			w.connect(1)
			w.settle(time.Minute)
			w.cluster.change(func() { w.cluster.unreachable = true })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.create(&sandboxv1.Policy{})
				prepare(w)
				w.remove()
				w.settle(20 * time.Minute)
				if !w.gone() {
					t.Errorf("the runner is still there: %v", w.get())
				}
			})
		})
	}
}

func TestDeletingRunnerTakesNoEditsAndNoSandboxes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.connect(1)
		w.cluster.change(func() { w.cluster.unreachable = true })
		w.remove()
		w.wantStatus(deleting, 1, 1)
		_, err := w.fleet.Management.UpdateManagedRunner(w.admin, &sandboxv1.UpdateManagedRunnerRequest{
			RunnerId: w.key.RunnerID, ManagedRunner: &sandboxv1.ManagedRunner{DisplayName: "x"},
			UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"display_name"}},
		})
		if apierr.ReasonOf(err) != apierr.RunnerDeleting {
			t.Errorf("update: %v, want %s", err, apierr.RunnerDeleting)
		}
		runner, ok, err := w.fleet.Registry.Runner(w.t.Context(), w.key)
		if err != nil || !ok || !runner.Deleting {
			t.Errorf("the gateway sees %v, %v, %v; want a runner that is deleting", runner, ok, err)
		}
		w.remove()
	})
}
