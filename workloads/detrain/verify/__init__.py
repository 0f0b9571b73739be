"""Verifies that reruns and resumed runs of a script are equal bit for bit, and names the first difference of others."""
