"""The states of a layer graph: the sets of layers that can precede a cut between two stages."""
