"""Draws traces: as timelines, in HTML reports, and other pictures."""

import logging

# matplotlib warns of a home that it cannot write to, which does not matter for a picture.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
