"""Tests of iotwin.loops.answers."""
