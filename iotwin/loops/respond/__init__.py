"""A job and its twin under the same changes of storage."""
