"""``iotwin checkpoints``: list, verify and prune a job's checkpoints, and audit how durably a traced job wrote checkpoints."""

from iotwin.command import Group


class CheckpointsGroup(Group):
    name = "checkpoints"
    help = "list, verify and prune the checkpoints that jobs resume from; audit those of any traced job"
    epilog = """examples:
  iotwin checkpoints list out/checkpoints
  iotwin checkpoints verify out/checkpoints
  iotwin checkpoints prune out/checkpoints --keep 2 --every 1000
  iotwin checkpoints audit run.trace"""
    modules = ("list", "verify", "prune", "audit")
