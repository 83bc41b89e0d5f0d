package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strings"

	"buf.build/go/protovalidate"
	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"connectrpc.com/vanguard"

	"github.com/sandbar-project/sandbar/api"
	"github.com/sandbar-project/sandbar/api/coreweave/sandbox/v1/sandboxv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/admin/v1/adminv1connect"
	"github.com/sandbar-project/sandbar/api/sandbar/runner/v1/runnerv1connect"
	"github.com/sandbar-project/sandbar/internal/audit"
	"github.com/sandbar-project/sandbar/internal/auth"
	"github.com/sandbar-project/sandbar/internal/fieldrules"
	"github.com/sandbar-project/sandbar/internal/fleet"
	"github.com/sandbar-project/sandbar/internal/gateway"
)

const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
	// openAPIPath is where anybody finds the description of the REST surface.
	openAPIPath = "/openapi.yaml"
	// maxRequestBytes is the contract's limit of one message.
	maxRequestBytes = 100 << 20
	// minCompressedBytes is the size from which an answer is worth compressing.
	minCompressedBytes = 16 << 10
)

// services are what the routes lead to.
type services struct {
	fleet   *fleet.Fleet
	tokens  *auth.Tokens
	audit   audit.Store
	gateway Gateway
	rules   protovalidate.Validator
	// limit is of one message that is received.
	limit messageLimit
	// ready answers nil when requests can be served.
	ready func(context.Context) error
	// version of this server.
	version string
	health  grpchealth.Checker
	logger  *slog.Logger
}

// callersOrganization is whose entries a caller sees.
func callersOrganization(ctx context.Context) (string, bool) {
	caller, ok := auth.PrincipalFrom(ctx)
	return caller.OrganizationID, ok
}

// routes is everything that is served on the one port.
//
// RPCs go straight to connect's handlers, which speak Connect, gRPC and
// gRPC-Web; REST is transcoded to the same handlers.
func routes(s services) (http.Handler, error) {
	base := []connect.HandlerOption{
		connect.WithReadMaxBytes(int(s.limit)),
		connect.WithRecover(recovered(s.logger)),
		withStrictJSON(),
		connect.WithConditionalHandlerOptions(compression),
	}
	public := append([]connect.HandlerOption{connect.WithInterceptors(
		&errorInterceptor{logger: s.logger, limit: s.limit},
		fieldrules.Interceptor(s.rules,
			sandboxv1connect.RunnerManagementServiceCreateManagedRunnerProcedure,
			sandboxv1connect.RunnerManagementServiceUpdateManagedRunnerProcedure),
	)}, base...)
	internal := append([]connect.HandlerOption{connect.WithInterceptors(&errorInterceptor{logger: s.logger, limit: s.limit})}, base...)

	mux := http.NewServeMux()
	errs := newRPCErrors(s.limit)
	var transcoded []*vanguard.Service
	var failures []error
	mount := func(path string, handler http.Handler) {
		methods, err := bindings(strings.Trim(path, "/"))
		failures = append(failures, err)
		handler = errs.wrap(auth.Middleware(s.tokens, identified(s.version, attributed(withQuery(methods, errs, handler)))))
		mux.Handle(path, handler)
		transcoded = append(transcoded, vanguard.NewService(path, handler))
	}
	mount(sandboxv1connect.NewRunnerManagementServiceHandler(s.fleet.Management, public...))
	mount(sandboxv1connect.NewSandboxServiceHandler(s.gateway, public...))
	mount(sandboxv1connect.NewDiscoveryServiceHandler(s.gateway, public...))
	mount(sandboxv1connect.NewSettingsServiceHandler(sandboxv1connect.UnimplementedSettingsServiceHandler{}, public...))
	mount(sandboxv1connect.NewVolumeServiceHandler(sandboxv1connect.UnimplementedVolumeServiceHandler{}, public...))
	mount(sandboxv1connect.NewSandboxTemplateServiceHandler(sandboxv1connect.UnimplementedSandboxTemplateServiceHandler{}, public...))
	mount(adminv1connect.NewClusterServiceHandler(s.fleet.Clusters, public...))
	mount(adminv1connect.NewRunnerServiceHandler(fleet.NewValidation(s.fleet.Management, s.gateway), public...))
	mount(adminv1connect.NewTokenServiceHandler(auth.NewService(s.tokens), public...))
	mount(adminv1connect.NewImageServiceHandler(s.gateway, public...))
	mount(adminv1connect.NewAuditServiceHandler(audit.NewService(s.audit, callersOrganization), public...))

	// Runners show credentials of their own, which the gateway checks.
	plainly := func(path string, handler http.Handler) { mux.Handle(path, errs.wrap(handler)) }
	plainly(runnerv1connect.NewEnrollmentServiceHandler(s.gateway, internal...))
	mux.Handle(gateway.TunnelPath, s.gateway.TunnelHandler())

	rest, err := newREST(transcoded, errs, s.logger)
	if err := errors.Join(append(failures, err)...); err != nil {
		return nil, err
	}
	mux.Handle("/v1/", rest)
	mux.Handle("/admin/v1/", rest)

	plainly(grpchealth.NewHandler(s.health, base...))
	reflector := grpcreflect.NewStaticReflector(auth.Services()...)
	plainly(grpcreflect.NewHandlerV1(reflector, base...))
	plainly(grpcreflect.NewHandlerV1Alpha(reflector, base...))
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET "+readyPath, func(w http.ResponseWriter, r *http.Request) {
		if err := s.ready(r.Context()); err != nil {
			plain(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		plain(w, http.StatusOK, "ready")
	})
	mux.HandleFunc("GET "+openAPIPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/yaml")
		// It is lost only with the connection.
		_, _ = w.Write(api.OpenAPI)
	})
	mux.HandleFunc("/", errs.notFound)
	return logged(s.logger, mux), nil
}

// versionHeader tells callers, once they have shown who they are, that this is
// Sandbar and of which version: clients that also talk to other servers use
// what only Sandbar serves when they see it.
const versionHeader = "Sandbar-Version"

func identified(version string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(versionHeader, version)
		next.ServeHTTP(w, r)
	})
}

// compression leaves small answers and every message of a stream as they are,
// whatever the caller accepts: a stream's messages are small or in a hurry, and
// compressing one costs more than relaying it. What callers send compressed is
// still understood.
func compression(spec connect.Spec) []connect.HandlerOption {
	if spec.StreamType != connect.StreamTypeUnary {
		return []connect.HandlerOption{connect.WithCompressMinBytes(math.MaxInt)}
	}
	return []connect.HandlerOption{connect.WithCompressMinBytes(minCompressedBytes)}
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	// The text is lost only with the connection.
	_, _ = fmt.Fprintln(w, text)
}
