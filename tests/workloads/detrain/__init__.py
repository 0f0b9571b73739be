"""Tests of DETrain."""
