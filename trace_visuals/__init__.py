"""Pictures of traces: the timeline figure and the self-contained HTML report."""

import logging

# matplotlib warns of a home that it cannot write to, which does not matter for a picture.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
