"""``python -m iotwin``: the command line."""

import sys

from iotwin.main import main

if __name__ == "__main__":
    sys.exit(main())
