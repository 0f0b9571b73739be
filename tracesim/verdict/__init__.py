"""Whether a twin is within what reruns of its job differ by."""
