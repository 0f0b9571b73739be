"""Replay a recording: the system calls of every thread of a traced job, each after the previous one has ended."""
