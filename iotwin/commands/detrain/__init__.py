"""``iotwin detrain``: find the loops of training scripts, run the scripts so that they resume exactly, and verify that."""

from iotwin.command import Group


class DetrainGroup(Group):
    name = "detrain"
    help = "make unmodified training scripts resume at any batch, bit for bit, and verify that"
    epilog = """examples:
  iotwin detrain discover train.py
  iotwin detrain import inst.info -o inst.json"""
    modules = ("discover", "import_inst", "run", "verify", "court")
