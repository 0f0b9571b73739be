"""``iotwin dtr``: dynamic tensor rematerialization, simulated, beside static plans."""

from iotwin.command import Group


class Dtr(Group):
    """Logs of a model's operations, replayed under a memory budget."""

    name = "dtr"
    help = "simulate training under a memory budget: rematerialisation by heuristics (DTR), beside static plans"
    epilog = """examples:
  iotwin dtr log mlp -o mlp.log
  iotwin dtr simulate mlp.log --heuristic DTR,LRU --ratio 1.0,0.5
  iotwin dtr sweep mlp.log --study pareto -o sweep"""
    leaf_classes = (
        ("log", "Log"),
        ("validate", "Validate"),
        ("simulate", "Simulate"),
        ("sweep", "Sweep"),
        ("chain", "Chain"),
        ("static", "Static"),
        ("plot", "PlotDtr"),
    )
