"""Draws traces: as timelines, in HTML reports, and other pictures."""

import logging

# matplotlib warns if it cannot write to its home folder. This does not matter for a picture.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
