"""``iotwin twin``: make a proven twin of a traced job, pack it, run a packed one."""

from iotwin.command import Group


class Twin(Group):
    """Fit, generate, run, compare and correct; or send the result on."""

    name = "twin"
    help = "make the twin of a traced job and correct it until its own trace matches; pack it; run a packed one"
    epilog = """examples:
  iotwin twin real.trace rerun.trace -o twin
  iotwin twin pack twin -o unet3d.twin
  iotwin twin run unet3d.twin -o here"""
    leaf_classes = (("make", "Make"), ("pack", "Pack"), ("run", "Run"))
    default = "make"
