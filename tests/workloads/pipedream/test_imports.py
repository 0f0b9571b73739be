"""What the planner may import: it must work without torch, and what it decides wherever numpy is."""

import ast
import sys

import pytest

from tests.conftest import ROOT

PIPEDREAM = sorted((ROOT / "workloads" / "pipedream" / "plan").rglob("*.py"))
POLICIES = sorted((ROOT / "workloads" / "policies").glob("pipeline*.py"))


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("path", [*PIPEDREAM, *POLICIES], ids=lambda path: path.name)
def test_nothing_imports_torch(path):
    assert not [name for name in _imported(path) if name.split(".")[0] in ("torch", "tensorflow", "benchmark", "tracesim")]


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_policies_import_the_standard_library_and_numpy(path):
    own = [name for name in _imported(path) if name.split(".")[0] not in {*sys.stdlib_module_names, "numpy"}]
    assert all(name.startswith("iotwin.workloads.policies") for name in own)
