"""Replay state over a segment's bytes: one mechanism a file, numpy and ints only."""
