// Package pagetoken makes and reads the page tokens of List methods (AIP-158).
//
// A token holds the key of the last row of a page and a checksum over it and
// over the list that it belongs to. A text that no List has given out is
// refused, and so is the token of another list or of other filters: followed,
// either would answer with rows that nobody asked for. The checksum is no
// secret; a key says nothing that its list does not show.
//
// It must not know what is listed.
package pagetoken

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/sandbar-project/sandbar/internal/apierr"
)

const checksumBytes = 8

// MaxSize is how many rows a page has at most; who asks for more gets these.
const MaxSize = 1000

// Size is how many rows a page has, given what was asked for: 0 is the default.
// Negative sizes are for the caller to refuse.
func Size(asked int32, byDefault int) int {
	if asked == 0 {
		return byDefault
	}
	return int(min(asked, MaxSize))
}

// List is what a token belongs to: the method, the organization and the
// filters, which together say which rows there are and in which order. The size
// of a page is not part of it.
type List []any

// Token is the token of the page after the row of that key, which must not be
// empty.
func (l List) Token(lastKey []byte) string {
	return base64.RawURLEncoding.EncodeToString(append(l.checksum(lastKey), lastKey...))
}

// Key answers with the key in a token; false when this list did not give the
// token out.
func (l List) Key(token string) (lastKey []byte, ok bool) {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) <= checksumBytes {
		return nil, false
	}
	lastKey = data[checksumBytes:]
	return lastKey, bytes.Equal(data[:checksumBytes], l.checksum(lastKey))
}

// Violation is what is wrong with a request whose token has no key.
func Violation() apierr.Violation {
	return apierr.Violation{
		Field: "page_token", Reason: "PAGE_TOKEN",
		Description: "is not a token that this list has given out with the same filters; begin again without one",
	}
}

func (l List) checksum(lastKey []byte) []byte {
	hash := sha256.New()
	part := func(data []byte) {
		// The length keeps parts apart. Writing to a hash never fails.
		_, _ = hash.Write(binary.AppendUvarint(nil, uint64(len(data))))
		_, _ = hash.Write(data)
	}
	for _, value := range l {
		part(fmt.Append(nil, value))
	}
	part(lastKey)
	return hash.Sum(nil)[:checksumBytes]
}
