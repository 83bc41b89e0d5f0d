package auth

import "log/slog"

// redacted is what every print of a Secret shows.
const redacted = "•••"

// Secret is a string that prints as dots, wherever it is printed. Only Reveal
// gives it away.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String implements fmt.Stringer.
func (Secret) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (Secret) GoString() string { return redacted }

// LogValue implements slog.LogValuer.
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler, so that JSON and YAML show
// dots too.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
