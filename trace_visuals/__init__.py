"""Pictures of traces: the timeline figure and the self-contained HTML report."""

import logging

# It tells of a home that it cannot write to, which is nothing to whoever asked for a picture.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
