"""The states of a layer graph: what may have run before a cut."""
