"""Loops are instrumented in memory, and do what they did."""

import ast
from pathlib import Path
from typing import Any

import pytest

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.instrumentation import CallLine, Instrumentation, SourceLine
from iotwin.workloads.detrain.rewrite import SESSION, batches_begin_without_gradients, instrumented, lines_run_again

LOOPS = """
def outer(epochs, batches, log):
    total, seen = 0, []
    for epoch in range(epochs):
        mean = 0
        for (
            index, batch
        ) in enumerate(batches):
            if batch < 0:
                continue
            total += batch; mean = total / (index + 1)
            try:
                seen += [value for value in (batch,)]
                if batch == 99:
                    break
            except ValueError as problem:
                log.append(problem)
            def inner():
                nonlocal total
                hidden = total
                return hidden
            inner()
        else:
            log.append("whole")
        log.append((epoch, total, mean))
    while (total := total - 7) > 0:
        log.append(total)
    return total, seen
"""


class Session:
    """Counts calls. `resume`: variables that the first batch takes over."""

    class Skipped(BaseException):
        pass

    def __init__(self, resume: dict[str, Any] | None = None) -> None:
        self.calls: list[str] = []
        self.resume = resume

    def opens(self, kind: str) -> None:
        self.calls.append(f"opens {kind}")

    def epochs(self, _: None, values: Any) -> Any:
        yield from values

    batches = epochs

    def epoch(self) -> bool:
        self.calls.append("epoch")
        return False

    def batch(self) -> bool:
        self.calls.append("batch")
        self.taken, self.resume = self.resume or {}, None
        return bool(self.taken)

    def has(self, name: str) -> bool:
        return name in self.taken

    def take(self, name: str) -> Any:
        return self.taken[name]


def found(path: Path, epoch: int | None, batch: int, data: int | None = None) -> Instrumentation:
    def line(number: int | None) -> SourceLine | None:
        return None if number is None else SourceLine(str(path), number)

    call = None if data is None else CallLine(str(path), data, "")
    return Instrumentation(
        script=str(path), source_sha256="", sources={}, kind="INDEXED", epoch=line(epoch), batch=line(batch), data=call
    )


def run(source: str, lines: tuple[int | None, int], session: Session, path: Path = Path("/train.py")) -> dict[str, Any]:
    tree = instrumented(source.encode(), path, found(path, *lines))
    names: dict[str, Any] = {SESSION: session}
    exec(compile(tree, str(path), "exec"), names)
    return names


def test_instrumented_loops_do_what_they_did():
    plain: dict[str, Any] = {}
    exec(LOOPS, plain)
    session = Session()
    names = run(LOOPS, (4, 6), session)
    logs: tuple[list, list] = [], []
    batches = [1, -2, 3, 4]
    assert plain["outer"](3, batches, logs[0]) == names["outer"](3, batches, logs[1])
    assert logs[0] == logs[1]
    assert session.calls == (["opens epoch", *["epoch", "opens batch", *["batch"] * 4] * 3])


def test_a_resumed_batch_takes_the_variables_that_its_function_assigns():
    names = run(LOOPS, (4, 6), Session({"total": 1000, "mean": 5, "seen": [7], "unknown": 1}))
    log: list = []
    assert names["outer"](1, [1, 2], log) == ((1003 - 1) % 7 - 6, [7, 1, 2])
    assert log[:2] == ["whole", (0, 1003, 501.5)]


def test_line_numbers_stay_those_of_the_file():
    tree = instrumented(LOOPS.encode(), Path("/train.py"), found(Path("/train.py"), 4, 6))
    before = {(type(node), node.lineno) for node in ast.walk(ast.parse(LOOPS)) if isinstance(node, ast.stmt)}
    after = {(type(node), node.lineno) for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    assert before <= after
    with pytest.raises(ZeroDivisionError) as raised:
        run("for x in [1]:\n    x\n    1 / 0\n", (None, 1), Session())
    assert raised.traceback[-1].lineno == 2  # from 0


def test_a_while_loop_and_one_at_module_level_are_instrumented():
    session = Session()
    names = run("n = 0\nwhile n < 3:\n    n += 1\n", (None, 2), session)
    assert names["n"] == 3 and session.calls == ["batch"] * 3


def test_a_line_that_is_no_loop_is_refused():
    with pytest.raises(IotwinError, match=r"train.py:5: is no loop, but the batch loop was there"):
        run(LOOPS, (4, 5), Session())


@pytest.mark.parametrize(
    ("body", "without"),
    [
        ("o.zero_grad(); l.backward(); o.step()", True),
        ("l.backward(); o.step()", False),
        ("o.zero_grad(); l.backward(); o.step(); p.step()", False),
        ("if i: o.zero_grad()\n    o.step()", False),
        ("o.zero_grad(); p.zero_grad(); o.step(); p.step()", True),
    ],
)
def test_gradients_are_saved_unless_each_batch_zeroes_them(tmp_path, body, without):
    (path := tmp_path / "train.py").write_text(f"for i in x:\n    {body}\n")
    assert batches_begin_without_gradients(found(path, None, 1)) is without


def test_lines_before_the_first_batch_run_again(tmp_path):
    text = "def f():\n    m = 0\n    for b in x:\n        m += b\nfor e in y:\n    e.set()\n    'words'\n    f()\n    e.end()"
    (path := tmp_path / "train.py").write_text(text)
    assert [(each.line, each.call) for each in lines_run_again(found(path, 5, 3))] == [(6, "e.set()"), (2, "m = 0")]
