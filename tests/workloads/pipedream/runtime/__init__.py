"""Tests of PipeDream's runtime."""
