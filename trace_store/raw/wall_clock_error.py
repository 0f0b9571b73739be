"""Read the bounds of adjtimex(2) on the error of the wall clock."""

import ctypes

_UNSYNCHRONISED = 0x40  # STA_UNSYNC of include/uapi/linux/timex.h
_NS_PER_US = 1000


class _Timex(ctypes.Structure):
    """The beginning of struct timex of include/uapi/linux/timex.h, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_char * 256),
    )  # fmt: skip


def wall_clock_error() -> tuple[int, int] | None:
    """Return the largest and the estimated error of CLOCK_REALTIME in ns. Returns None if no time daemon reports them.

    systemd-timesyncd sets both to 0 without measuring them, so an estimated error of 0 counts as unknown.
    """
    state = _Timex()  # modes 0: read only
    library = ctypes.CDLL(None)
    if not hasattr(library, "adjtimex") or library.adjtimex(ctypes.byref(state)) < 0:
        return None
    if state.status & _UNSYNCHRONISED or state.esterror <= 0 or state.maxerror <= 0:
        return None
    return state.maxerror * _NS_PER_US, state.esterror * _NS_PER_US
