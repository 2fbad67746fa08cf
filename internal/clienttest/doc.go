// Package clienttest proves that clients which other people wrote obey the limiter's
// answers. It is a module of its own, so that nobody who uses the limiter gets them.
package clienttest
