package apierr

import (
	"net/http"

	"connectrpc.com/connect"
)

// Reason says what went wrong, in a word that clients can rely on.
type Reason string

// The reasons. Those of the public contract keep its names; ours follow its
// form.
const (
	Unauthenticated         Reason = "CWSANDBOX_UNAUTHENTICATED"
	PermissionDenied        Reason = "CWSANDBOX_PERMISSION_DENIED"
	InvalidRequest          Reason = "CWSANDBOX_INVALID_REQUEST"
	NotImplemented          Reason = "CWSANDBOX_NOT_IMPLEMENTED"
	PathNotFound            Reason = "CWSANDBOX_PATH_NOT_FOUND"
	MethodNotFound          Reason = "CWSANDBOX_METHOD_NOT_FOUND"
	MethodNotAllowed        Reason = "CWSANDBOX_METHOD_NOT_ALLOWED"
	UnsupportedMediaType    Reason = "CWSANDBOX_UNSUPPORTED_MEDIA_TYPE"
	HTTPVersionNotSupported Reason = "CWSANDBOX_HTTP_VERSION_NOT_SUPPORTED"
	RequestTooLarge         Reason = "CWSANDBOX_REQUEST_TOO_LARGE"
	Cancelled               Reason = "CWSANDBOX_CANCELLED"
	DeadlineExceeded        Reason = "CWSANDBOX_DEADLINE_EXCEEDED"
	ETagMismatch            Reason = "CWSANDBOX_ETAG_MISMATCH"
	Internal                Reason = "CWSANDBOX_INTERNAL"
	BackendUnavailable      Reason = "CWSANDBOX_BACKEND_UNAVAILABLE"
	StorageFull             Reason = "CWSANDBOX_STORAGE_FULL"
	RunnerNotFound          Reason = "CWSANDBOX_RUNNER_NOT_FOUND"
	RunnerExists            Reason = "CWSANDBOX_RUNNER_ALREADY_EXISTS"
	RunnerUnavailable       Reason = "CWSANDBOX_RUNNER_UNAVAILABLE"
	RunnerCapacityExhausted Reason = "CWSANDBOX_RUNNER_CAPACITY_EXHAUSTED"
	RunnerOverloaded        Reason = "CWSANDBOX_RUNNER_OVERLOADED"
	RunnerDeleting          Reason = "CWSANDBOX_RUNNER_DELETING"
	RunnerHasVolumes        Reason = "CWSANDBOX_RUNNER_HAS_VOLUMES"
	UpdateExcluded          Reason = "CWSANDBOX_UPDATE_EXCLUDED"
	ClusterNotFound         Reason = "CWSANDBOX_CLUSTER_NOT_FOUND"
	ClusterTaken            Reason = "CWSANDBOX_CLUSTER_TAKEN"
	ClusterExists           Reason = "CWSANDBOX_CLUSTER_ALREADY_EXISTS"
	ClusterInUse            Reason = "CWSANDBOX_CLUSTER_IN_USE"
	TokenNotFound           Reason = "CWSANDBOX_TOKEN_NOT_FOUND"
	NoSuitableRunner        Reason = "CWSANDBOX_NO_SUITABLE_RUNNER"
	PlacementRejected       Reason = "CWSANDBOX_PLACEMENT_REJECTED"
	PlacementUnsatisfied    Reason = "CWSANDBOX_PLACEMENT_CONSTRAINT_UNSATISFIED"
	ServerlessNotAllowed    Reason = "CWSANDBOX_SERVERLESS_NOT_ALLOWED"
	PolicyViolation         Reason = "CWSANDBOX_POLICY_VIOLATION"
	ResourceCeilingExceeded Reason = "CWSANDBOX_RESOURCE_CEILING_EXCEEDED"
	SandboxNotFound         Reason = "CWSANDBOX_SANDBOX_NOT_FOUND"
	SandboxNotRunning       Reason = "CWSANDBOX_SANDBOX_NOT_RUNNING"
	CommandTimeout          Reason = "CWSANDBOX_COMMAND_TIMEOUT"
	FileNotFound            Reason = "CWSANDBOX_FILE_NOT_FOUND"
	FileIsDirectory         Reason = "CWSANDBOX_FILE_IS_DIRECTORY"
	FileIOFailed            Reason = "CWSANDBOX_FILE_IO_FAILED"
	FilePermissionDenied    Reason = "CWSANDBOX_FILE_PERMISSION_DENIED"
	FileTooLarge            Reason = "CWSANDBOX_FILE_TOO_LARGE"
)

// row is one line of the table.
type row struct {
	code connect.Code
	// exit is what the CLI ends with; see docs/cli.md.
	exit int
}

// The exit codes of the CLI. A sandbox's own exit code takes their place in
// `sandbar run` and `sandbar sandbox exec`.
const (
	ExitOK           = 0
	ExitFailure      = 1
	ExitUsage        = 2
	ExitUnauthorized = 3
	ExitNotFound     = 4
	ExitConflict     = 5
	ExitRefused      = 6
	ExitUnavailable  = 7
)

var table = map[Reason]row{
	Unauthenticated:         {connect.CodeUnauthenticated, ExitUnauthorized},
	PermissionDenied:        {connect.CodePermissionDenied, ExitUnauthorized},
	InvalidRequest:          {connect.CodeInvalidArgument, ExitUsage},
	NotImplemented:          {connect.CodeUnimplemented, ExitFailure},
	PathNotFound:            {connect.CodeNotFound, ExitFailure},
	MethodNotFound:          {connect.CodeUnimplemented, ExitFailure},
	MethodNotAllowed:        {connect.CodeUnimplemented, ExitFailure},
	UnsupportedMediaType:    {connect.CodeInvalidArgument, ExitFailure},
	HTTPVersionNotSupported: {connect.CodeUnimplemented, ExitFailure},
	RequestTooLarge:         {connect.CodeResourceExhausted, ExitUsage},
	Cancelled:               {connect.CodeCanceled, ExitFailure},
	DeadlineExceeded:        {connect.CodeDeadlineExceeded, ExitUnavailable},
	ETagMismatch:            {connect.CodeFailedPrecondition, ExitConflict},
	Internal:                {connect.CodeInternal, ExitFailure},
	BackendUnavailable:      {connect.CodeUnavailable, ExitUnavailable},
	StorageFull:             {connect.CodeResourceExhausted, ExitUnavailable},
	RunnerNotFound:          {connect.CodeNotFound, ExitNotFound},
	RunnerExists:            {connect.CodeAlreadyExists, ExitConflict},
	RunnerUnavailable:       {connect.CodeUnavailable, ExitUnavailable},
	RunnerCapacityExhausted: {connect.CodeResourceExhausted, ExitUnavailable},
	RunnerOverloaded:        {connect.CodeUnavailable, ExitUnavailable},
	RunnerDeleting:          {connect.CodeFailedPrecondition, ExitConflict},
	RunnerHasVolumes:        {connect.CodeFailedPrecondition, ExitConflict},
	UpdateExcluded:          {connect.CodeFailedPrecondition, ExitConflict},
	ClusterNotFound:         {connect.CodeNotFound, ExitNotFound},
	ClusterTaken:            {connect.CodeAlreadyExists, ExitConflict},
	ClusterExists:           {connect.CodeAlreadyExists, ExitConflict},
	ClusterInUse:            {connect.CodeFailedPrecondition, ExitConflict},
	TokenNotFound:           {connect.CodeNotFound, ExitNotFound},
	NoSuitableRunner:        {connect.CodeFailedPrecondition, ExitUnavailable},
	PlacementRejected:       {connect.CodeFailedPrecondition, ExitRefused},
	PlacementUnsatisfied:    {connect.CodeFailedPrecondition, ExitRefused},
	ServerlessNotAllowed:    {connect.CodeFailedPrecondition, ExitRefused},
	PolicyViolation:         {connect.CodeInvalidArgument, ExitRefused},
	ResourceCeilingExceeded: {connect.CodeInvalidArgument, ExitRefused},
	SandboxNotFound:         {connect.CodeNotFound, ExitNotFound},
	SandboxNotRunning:       {connect.CodeFailedPrecondition, ExitConflict},
	CommandTimeout:          {connect.CodeDeadlineExceeded, ExitFailure},
	FileNotFound:            {connect.CodeNotFound, ExitNotFound},
	FileIsDirectory:         {connect.CodeFailedPrecondition, ExitFailure},
	FileIOFailed:            {connect.CodeInternal, ExitFailure},
	FilePermissionDenied:    {connect.CodePermissionDenied, ExitFailure},
	FileTooLarge:            {connect.CodeOutOfRange, ExitFailure},
}

// codeReasons are those of errors that the RPC libraries make. Of exhausted
// resources they know only the size of a message.
var codeReasons = map[connect.Code]Reason{
	connect.CodeCanceled:          Cancelled,
	connect.CodeUnknown:           Internal,
	connect.CodeInvalidArgument:   InvalidRequest,
	connect.CodeDeadlineExceeded:  DeadlineExceeded,
	connect.CodeResourceExhausted: RequestTooLarge,
	connect.CodeUnimplemented:     NotImplemented,
	connect.CodeInternal:          Internal,
	connect.CodeUnavailable:       BackendUnavailable,
	connect.CodeUnauthenticated:   Unauthenticated,
	connect.CodePermissionDenied:  PermissionDenied,
}

// httpStatuses are of the reasons whose status says more than their code's.
var httpStatuses = map[Reason]int{
	MethodNotAllowed:        http.StatusMethodNotAllowed,
	UnsupportedMediaType:    http.StatusUnsupportedMediaType,
	HTTPVersionNotSupported: http.StatusHTTPVersionNotSupported,
	RequestTooLarge:         http.StatusRequestEntityTooLarge,
}

// HTTPStatus is what REST answers an error of the reason with.
func (r Reason) HTTPStatus() int {
	if status, ok := httpStatuses[r]; ok {
		return status
	}
	return HTTPStatus(r.Code())
}

// HTTPStatus is google.rpc.Code's mapping to HTTP.
func HTTPStatus(code connect.Code) int {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAborted, connect.CodeAlreadyExists:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeCanceled:
		return 499
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeDataLoss:
	}
	return http.StatusInternalServerError
}

// codeExits is for errors without a reason of ours.
var codeExits = map[connect.Code]int{
	connect.CodeUnauthenticated:    ExitUnauthorized,
	connect.CodePermissionDenied:   ExitUnauthorized,
	connect.CodeInvalidArgument:    ExitUsage,
	connect.CodeNotFound:           ExitNotFound,
	connect.CodeAlreadyExists:      ExitConflict,
	connect.CodeFailedPrecondition: ExitConflict,
	connect.CodeAborted:            ExitConflict,
	connect.CodeUnavailable:        ExitUnavailable,
	connect.CodeResourceExhausted:  ExitUnavailable,
}

// Code is the gRPC code of the reason; CodeInternal for one that is not in the
// table.
func (r Reason) Code() connect.Code {
	if row, ok := table[r]; ok {
		return row.code
	}
	return connect.CodeInternal
}

// ExitCode is what a command ends with because of err.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if row, ok := table[ReasonOf(err)]; ok {
		return row.exit
	}
	if exit, ok := codeExits[connect.CodeOf(err)]; ok {
		return exit
	}
	return ExitFailure
}
