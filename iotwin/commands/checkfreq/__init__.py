"""``iotwin checkfreq``: choose how often a job checkpoints, and predict what the checkpoints cost and save."""

from iotwin.command import Group


class CheckFreqGroup(Group):
    name = "checkfreq"
    help = "choose how often to checkpoint at a bounded cost; predict the speed of a job whose machines fail"
    epilog = """examples:
  iotwin checkfreq plan --iteration-time 0.2 --host-copy 0.6 --write-time 2 --size 1GiB --overhead 0.05
  iotwin checkfreq probe out"""
    modules = ("plan", "tune", "goodput", "probe", "crash", "results")
