"""Whether a twin is within what reruns of its job differ by, and what may be wrong with the traces themselves."""
