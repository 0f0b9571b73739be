"""``iotwin pipedream``: profile a model, plan a training pipeline, predict its timeline, write its twin, and train it."""

from iotwin.command import Group


class PipeDreamGroup(Group):
    name = "pipedream"
    help = "plan a training pipeline from a profile of its layers, predict its times, make its twin, train it"
    epilog = """examples:
  iotwin pipedream optimize vgg16.graph.txt -n 4 -b 1e9 --activation-compression-ratio 1 -o plan
  iotwin pipedream simulate plan/plan.json --trace plan.trace"""
    modules = (
        "profile",
        "graph",
        "compress",
        "optimize",
        "evaluate",
        "speedups",
        "convert",
        "simulate",
        "twin",
        "validate",
        "drive",
        "terminate",
        "verify",
        "bandwidth",
        "results",
        "merge",
        "bleu",
    )
