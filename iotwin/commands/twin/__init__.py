"""``iotwin twin``: make the twin of a traced job, pack it into a file, run a packed twin, or run it under other storage."""

from iotwin.command import Group


class TwinGroup(Group):
    name = "twin"
    help = "make the twin of a traced job, run it and compare; pack it; run it elsewhere; change the storage"
    epilog = """examples:
  iotwin twin real.trace rerun.trace -o twin
  iotwin twin pack twin -o unet3d.twin
  iotwin twin run unet3d.twin -o here
  iotwin twin respond twin -o response --job python train.py"""
    modules = ("make", "pack", "run", "respond")
    default = "make"
