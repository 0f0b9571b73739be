"""``iotwin dtr``: simulate training under a memory budget by dynamic tensor rematerialization (DTR) or by static plans."""

from iotwin.command import Group


class DtrGroup(Group):
    name = "dtr"
    help = "train within a memory budget by recomputing tensors (DTR), predict what that costs, or plan it in advance"
    epilog = """examples:
  iotwin dtr log mlp -o mlp.log
  iotwin dtr simulate mlp.log --heuristic DTR,LRU --ratio 1.0,0.5
  iotwin dtr sweep mlp.log --study pareto -o sweep"""
    modules = ("log", "train", "validate", "simulate", "sweep", "chain", "static", "run", "plot")
