"""Exports of a trace: one module for each format of another tool."""
