"""Bytes and processes: mapped segments, the lock, the event, members. No torch, no replay words."""
