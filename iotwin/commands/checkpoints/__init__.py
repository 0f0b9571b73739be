"""``iotwin checkpoints``: which checkpoints of a job would load, which may go, and what a loss of power would have left."""

from iotwin.command import Group


class CheckpointsGroup(Group):
    """The store that jobs of ours write with --checkpoint-steps and its like; `audit` is of any job's checkpoints."""

    name = "checkpoints"
    help = "list, verify and prune the checkpoints that jobs resume from; audit those of any traced job"
    epilog = """examples:
  iotwin checkpoints list out/checkpoints
  iotwin checkpoints verify out/checkpoints
  iotwin checkpoints prune out/checkpoints --keep 2 --every 1000
  iotwin checkpoints audit run.trace"""
    leaf_classes = (
        ("list", "CheckpointsListCommand"),
        ("verify", "CheckpointsVerifyCommand"),
        ("prune", "CheckpointsPruneCommand"),
        ("audit", "CheckpointsAuditCommand"),
    )
