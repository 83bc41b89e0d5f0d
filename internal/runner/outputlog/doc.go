// Package outputlog keeps the newest output of one sandbox's main process on
// disk and streams it to readers.
//
// Output is a sequence of bytes, numbered from the first that was appended.
// It lies in at most two segment files, each up to half of the log's limit;
// when the newer one is full, the older one is dropped. What was appended is
// found again by the next Open, a torn last record excepted, which an
// interrupted write leaves.
//
// A Session is a way to look at the output: where it starts and whether lines
// carry the time. Its formatted form is a function of the output alone, so a
// session is nothing but its identifier, and reading on at any formatted byte
// gives what an uninterrupted reader would have got.
//
// It must not import the API or know what a sandbox is.
package outputlog
