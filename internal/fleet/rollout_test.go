package fleet_test

import (
	"errors"
	"testing"
	"time"

	sandboxv1 "github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

func TestRolloutStartsTheNewRevisionBesideTheOld(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.connect(1)
		w.edit("two")
		w.wantStatus(ready, 1, 2)
		w.wantInstalled(1, 2)
		if !w.get().GetRolloutInProgress() {
			t.Error("no rollout in progress")
		}
		w.connect(2)
		w.wantStatus(ready, 2, 2)
		w.wantInstalled(2)
	})
}

func TestRolloutThatFailsIsRolledBack(t *testing.T) {
	for name, fail := range map[string]func(*world){
		"the cluster refuses it": func(w *world) {
			w.cluster.change(func() { w.cluster.failing[2] = &sandboxv1.InstallError{Reason: sandboxv1.InstallError_CRASH_LOOP} })
			w.settle(2 * time.Second)
		},
		"it does not connect in time": func(w *world) { w.settle(5*time.Minute + 2*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.create(&sandboxv1.Policy{})
				identity := w.connect(1)
				w.edit("two")
				fail(w)
				w.wantStatus(ready, 1, 1)
				w.wantInstalled(1)
				w.fleet.Registry.Heartbeat(w.t.Context(), identity, time.Now())
				w.edit("three")
				w.wantStatus(ready, 1, 3)
				w.connect(3)
				w.wantStatus(ready, 3, 3)
				w.wantInstalled(3)
			})
		})
	}
}

func TestRetiredRevisionCannotEnrolOrAuthenticate(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		w.connect(1)
		w.cluster.mu.Lock()
		old := w.cluster.tokens[1]
		w.cluster.mu.Unlock()
		w.edit("two")
		w.connect(2)
		if _, _, err := w.fleet.Registry.Enroll(w.t.Context(), old, ""); !errors.Is(err, gateway.ErrUnknownCredential) {
			t.Errorf("enrol with a retired token: %v", err)
		}
	})
}

func TestEnrollingAgainRotatesTheCredential(t *testing.T) {
	inWorld(t, func(w *world) {
		w.create(&sandboxv1.Policy{})
		token := w.cluster.tokens[1]
		_, first, err := w.fleet.Registry.Enroll(w.t.Context(), token, "")
		if err != nil {
			t.Fatal(err)
		}
		_, second, err := w.fleet.Registry.Enroll(w.t.Context(), token, "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.fleet.Registry.Authenticate(w.t.Context(), first); !errors.Is(err, gateway.ErrUnknownCredential) {
			t.Errorf("the first credential: %v, want it unknown", err)
		}
		if _, err := w.fleet.Registry.Authenticate(w.t.Context(), second); err != nil {
			t.Errorf("the second credential: %v", err)
		}
		if _, err := w.fleet.Registry.Authenticate(w.t.Context(), token); !errors.Is(err, gateway.ErrUnknownCredential) {
			t.Errorf("the enrolment token as a credential: %v, want it unknown", err)
		}
	})
}
