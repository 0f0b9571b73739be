"""What terminals show at the end of a command and instead of one: conclusions, next commands, groups, guesses."""

import json

import pytest

from iotwin.commands.doctor import _conclusion
from iotwin.commands.trace import _merged
from iotwin.common.terminal import print_wrapped
from iotwin.main import load_commands
from tests.conftest import run_iotwin
from tests.processes import call
from tests.synthetic import Job, write_job


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    return [write_job(folder / f"{name}.trace", Job(seed=seed)) for name, seed in (("real", 1), ("rerun", 2))]


def test_without_a_command_every_command_is_listed_once_in_a_group():
    done = call()
    lines = done.stdout.splitlines()
    titles = [line for line in lines if line.endswith(":")]
    assert titles == ["measure a job:", "answer questions:", "build and run its twin:", "training systems:", "more:"]
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert sorted(listed) == sorted(command.name for command in load_commands())
    assert (
        lines.index("measure a job:")
        < lines.index(next(line for line in lines if line.startswith("  trace ")))
        < lines.index(titles[1])
    )
    assert "iotwin demo" in lines[-1] and done.returncode == 2


def test_a_wrong_choice_gets_a_guess(traces):
    done = call("stats", traces[0], "--by", "fil")
    assert done.returncode == 2 and "(did you mean 'file'?)" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_folder_of_traces_is_refused_with_the_names_of_its_traces(traces, tmp_path):
    done = call("info", traces[0].parent)
    assert done.returncode == 1
    assert f"contains the traces real.trace, rerun.trace; give one of them, as {traces[0]}" in done.stderr
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text("{}")  # a data set's
    assert "contains" not in call("info", tmp_path).stderr


def test_fit_and_compare_name_the_next_command(traces, tmp_path):
    fitted = call("fit", traces[0], "-o", tmp_path / "twin.yaml")
    assert fitted.stdout.splitlines()[-1] == f"next: iotwin emulate {tmp_path / 'twin.yaml'}"
    compared = call("compare", *traces)
    assert compared.stdout.splitlines()[-1] == f"next: iotwin report {traces[0]} {traces[1]} -o report.html"


def test_doctor_concludes_with_the_best_backend_and_the_next_command():
    def checks(**reasons):
        return {"checks": [{"name": name, "reason": reason} for name, reason in reasons.items()]}

    assert _conclusion(checks(libbpf=None, torch=None)) == "this machine can trace, by libbpf; next: iotwin demo -o demo"
    slower = _conclusion(checks(libbpf="not root", strace=None, torch="no module"))
    assert slower.startswith("this machine can trace, by strace; libbpf would cost the job less")
    assert slower.endswith("next: iotwin trace -o run.trace -- COMMAND")
    assert "cannot trace" in _conclusion(checks(libbpf="not root", torch=None))


def test_a_user_without_root_gets_two_notes():
    notes = [
        "no libbpf: not root",
        "no bcc: not root",
        "no bpftrace: not root",
        "no GPU samples: no driver",
        "by process tree",
        "no mmap",
    ]
    assert _merged(notes) == ["no libbpf: not root (nor bcc, bpftrace: see iotwin doctor)", "by process tree; no mmap"]
    assert _merged(notes[:1]) == ["no libbpf: not root"]
    assert _merged(["no GPU samples: no driver"]) == [] and _merged(["a", "b"]) == ["a; b"]


def test_on_a_terminal_lines_break_between_words(monkeypatch, capsys):
    text = "  name  " + " ".join(["understandable"] * 20)
    print_wrapped(text, 8)
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    print_wrapped(text, 8)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3 and max(map(len, lines)) <= 50 and " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert all(line.startswith(" " * 8 + "understandable") for line in lines[1:])


@pytest.mark.root
def test_trace_names_the_next_command(tmp_path):
    done = run_iotwin("trace", "-o", tmp_path / "run.trace", "--", "true")
    assert f"next: iotwin report {tmp_path / 'run.trace'} -o report.html" in done.stderr
    failed = run_iotwin("trace", "-o", tmp_path / "bad.trace", "--", "false")
    assert "next:" not in failed.stderr


def test_info_leads_with_the_verdict_and_separates_storage_from_polling(tmp_path):
    trace = write_job(tmp_path / "job.trace", Job(log_waits=True, pipes=True))
    lines = call("info", trace).stdout.splitlines()
    assert lines[0].startswith("Not limited by storage: the rank waits for data for ")
    (uses,) = (line for line in lines if line.startswith("time in calls: "))
    assert "storage " in uses and "polling " in uses and "pipes and sockets " in uses
    document = json.loads(call("info", trace, "--json").stdout)
    storage = sum(row["calls"] for row in document["files"] if row["kind"] in ("dataset", "checkpoint", "log"))
    assert f" in {storage:,} calls, polling" in uses


def test_fit_writes_yaml_only_and_names_the_suffix(tmp_path):
    write_job(tmp_path / "t", Job())
    done = call("fit", tmp_path / "t", "-o", tmp_path / "twin.json")
    assert done.returncode == 2 and ".yaml" in done.stderr and not (tmp_path / "twin.json").exists()


def test_fit_replaces_its_own_twin_but_none_that_somebody_edited(tmp_path):
    write_job(tmp_path / "t", Job())
    arguments, twin = ("fit", tmp_path / "t", "-o", tmp_path / "twin.yaml"), tmp_path / "twin.yaml"
    call(*arguments)
    written = twin.read_text()
    call(*arguments)
    assert twin.read_text() == written
    for edited in (written.replace("data_folder: ", "data_folder: /elsewhere"), written + "# mine\n", "mine: true\n", ""):
        assert edited != written
        twin.write_text(edited)
        done = call(*arguments)
        assert done.returncode == 2 and "--force" in done.stderr and len(done.stderr.splitlines()) == 1
        assert twin.read_text() == edited
    call(*arguments, "--force")
    assert twin.read_text() == written
