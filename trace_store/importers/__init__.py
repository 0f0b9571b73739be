"""Importers: one module for each format of another tool."""
