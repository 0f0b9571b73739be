"""How far loaders read ahead by default. The emulator reads ahead as far, and fit assumes that jobs do."""

BATCHES_AHEAD = 2  # batches per worker process (PyTorch's default) or per stream (DLIO's default for tf.data)
OPENED_AHEAD = 2  # files that tf.data opens ahead for each file that it interleaves (prefetch_input_elements)
