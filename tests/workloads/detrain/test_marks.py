"""Marks that a script sets itself, and the patch that puts them into a script."""

import subprocess

from tests.processes import call
from tests.workloads.detrain.script_server import ScriptServer

SCRIPT = """from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), 4, shuffle=True)
    total = 0.0
    for epoch in range(3):
        losses = []
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            losses.append(loss.item())
        print(epoch, total.hex(), len(losses))


main()
"""


def test_a_patched_script_runs_as_before_and_resumes_equal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (script := tmp_path / "train.py").write_text(SCRIPT)
    with ScriptServer(tmp_path) as server:

        def run(*words: object, plain: bool = False) -> str:
            ended = server.run(words, plain)
            assert ended.status == 0, ended.err
            return ended.out

        whole = run(script, plain=True)
        patch = call("detrain", "discover", script, "--emit-patch").stdout
        subprocess.run(["patch", "-s", "-p1"], input=patch, cwd=tmp_path, text=True, check=True)
        added = [line[1:] for line in patch.splitlines() if line.startswith("+") and not line.startswith("+++")]
        assert [line.strip() for line in added] == [
            "from iotwin.workloads.detrain import record_batch, record_epoch", "record_epoch()", "if not record_batch():",
            "continue",
        ]  # fmt: skip
        assert run(script, plain=True) == whole
        assert run("-o", "run", "--at", "1:2", script) == whole
        resumed = run("-o", "run", script).splitlines()
    assert resumed[1:] == whole.splitlines()[1:]
    assert resumed[0] == f"0 {(0.0).hex()} 0", "batches before the checkpoint are skipped"
