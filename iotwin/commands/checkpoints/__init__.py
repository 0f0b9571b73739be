"""``iotwin checkpoints``: which checkpoints of a job would load, and which may go."""

from iotwin.command import Group


class Checkpoints(Group):
    """The store that jobs of ours write with --checkpoint-steps and its like."""

    name = "checkpoints"
    help = "list, verify and prune the checkpoints that jobs resume from"
    epilog = """examples:
  iotwin checkpoints list out/checkpoints
  iotwin checkpoints verify out/checkpoints
  iotwin checkpoints prune out/checkpoints --keep 2 --every 1000"""
    leaf_classes = (("list", "List"), ("verify", "Verify"), ("prune", "Prune"))
