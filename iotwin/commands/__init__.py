"""One file per command. Modules import heavy libraries inside `run`, so that ``iotwin --help`` stays fast."""
