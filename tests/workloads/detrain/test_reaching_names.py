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


@pytest.mark.parametrize("call", [
    "fns = [step, other]\ndef loop():\n    for each in fns:\n        each(1)",
    "def loop(fns):\n    return [each(1) for each in fns]\nloop((step, other))",
    "fns = {}\nfns['a'] = step\ndef loop():\n    return fns['a'](1)",
    "fns = []\nfns.append(step)\ndef loop():\n    for each in fns:\n        plain(each)",
    "fns = dict(a=step, b=other)\ndef loop():\n    for name in fns:\n        fns[name](1)",
])  # fmt: skip
def test_a_loop_over_functions_leads_to_an_update_if_one_of_them_does(tmp_path, call):
    assert "loop" in reached(tmp_path, call)[0]


def test_loops_over_other_things_lead_nowhere(tmp_path):
    found = reached(tmp_path, "fns = [other, plain]\ndef loop():\n    for each in fns:\n        each(1)")[0]
    assert found == {"kept", "inner"}
