"""The read-ahead of loaders. The emulator reads this far ahead, and fit assumes it."""

BATCHES_AHEAD = 2  # batches ahead per worker process (PyTorch's default) and per stream (DLIO's default for tf.data)
OPENED_AHEAD = 2  # files that tf.data opens ahead for each file that it interleaves: its prefetch_input_elements
