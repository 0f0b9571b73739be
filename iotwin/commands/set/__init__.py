"""``iotwin set``: read the traces that the hosts of one job recorded as one trace, in place."""

from iotwin.command import Group


class SetGroup(Group):
    name = "set"
    help = "make a set of the traces of a job's hosts, which every command reads as one trace; check a set"
    epilog = """examples:
  iotwin set make job node0.trace node1.trace
  iotwin set check job"""
    modules = ("make", "check")
