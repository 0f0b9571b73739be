"""Batches of a traced job: which calls served which one."""
