"""Child processes of ours, and threads for work in parallel: how they begin, what they import, how they end."""
