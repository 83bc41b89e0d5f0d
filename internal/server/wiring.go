package server

import (
	"errors"

	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/install"
	"github.com/sandbar-project/sandbar/internal/store/sqlite"
)

func newGateway(Config, *sqlite.Store, *fleet.Registry) Gateway { return nil }

func newLocalInstaller(Config, string) (install.Installer, error) {
	return nil, errors.New("this build has no gateway and no local runner yet")
}
