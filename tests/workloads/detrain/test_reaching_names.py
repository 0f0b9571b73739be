"""Only functions that may lead to an update of weights are followed, and only modules that may mention them are parsed."""

import ast

import pytest

from iotwin.workloads.detrain.source_analysis.local_modules import LocalModules
from iotwin.workloads.detrain.source_analysis.reaching_names import ReachingNames

TRAIN = """
from functools import partial
from helpers import plain

def step(batch):
    optimizer.step()

def runs(x, *, act=None):
    x(act)

def other(x, act=None):
    return x + act

def kept():
    fn = step
    def inner():
        nonlocal fn
        fn = partial(fn)
        fn()
    inner()

def shadows(fn):
    return plain(fn)
"""


def reached(tmp_path, call: str, **files: str) -> tuple[set[str], set[str]]:
    """Return the functions that may lead to an update, and the parsed modules."""
    (tmp_path / "train.py").write_text(TRAIN + call)
    for name, text in {"helpers": "def plain(x):\n    return x", **files}.items():
        (tmp_path / f"{name}.py").write_text(text)
    modules = LocalModules(tmp_path / "train.py")
    names = ReachingNames(modules)
    functions = {
        node.name
        for node in modules.entry.nodes
        if isinstance(node, ast.FunctionDef) and names.reached_by(node, modules.entry) and node.name != "step"
    }
    return functions, {module.path.stem for module in modules.all() if "tree" in vars(module)}


@pytest.mark.parametrize(
    "call", ["runs(step)", "runs(x=step)", "partial(runs, step)", "partial(runs, x=step)()", "runs(lambda b: step(b))"]
)
def test_a_parameter_leads_to_an_update_only_in_its_own_function(tmp_path, call):
    functions, parsed = reached(tmp_path, call)
    assert functions == {"runs", "kept", "inner"}
    assert parsed == {"train"}


def test_arguments_that_no_function_gets_lead_nowhere(tmp_path):
    assert reached(tmp_path, "runs(None, act=step)")[0] == {"runs", "kept", "inner"}
    assert reached(tmp_path, "runs(None, None)")[0] == {"kept", "inner"}


def test_a_module_that_mentions_a_function_which_leads_to_an_update_is_parsed(tmp_path):
    for number, text in enumerate(("from train import step as s", "import train\ntrain.step(1)", "from train import *\nstep(1)")):
        (tmp_path / str(number)).mkdir()
        _, parsed = reached(tmp_path / str(number), "import more", more=text)
        assert parsed >= {"train", "more"}
    (tmp_path / "unused").mkdir()
    _, parsed = reached(tmp_path / "unused", "import more", more="# runs step\nstep = 1\n")
    assert parsed == {"train"}
