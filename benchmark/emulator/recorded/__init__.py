"""Replaying a recording: the calls of every thread of a traced job, in closed loop."""
