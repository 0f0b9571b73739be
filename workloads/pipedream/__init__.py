"""PipeDream (SOSP'19): from a layer graph with times and bytes to a plan, its prediction and its twin."""
