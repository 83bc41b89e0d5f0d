// Package bridge converts between Terraform values and protobuf messages by
// walking the Terraform type and the message descriptor together.
//
// An attribute and a field belong together when they have the same name; the
// few that differ are named in Rules. What a missing value means on either
// side (the presence rules) is decided here and nowhere else:
//
//   - a null attribute is an absent field, and the other way round;
//   - proto3 cannot tell a missing scalar from a zero one, nor a missing list
//     or map from an empty one, so what the reader wrote before (the prior
//     value) decides between them, unless Rules.Distinct names the field;
//   - a message is present or absent, even when it is empty;
//   - an enum's zero value is null;
//   - observed numbers and booleans (OUTPUT_ONLY) are never null.
//
// Text that means the same as the prior text (a time, a JSON document, a
// quantity) keeps the prior spelling.
//
// The package is pure: no I/O, no clock, no knowledge of resources. It must
// not import the provider.
package bridge
