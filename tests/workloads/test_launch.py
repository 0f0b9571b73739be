"""Ranks started together: what each gets, whose failure is named, and that none is left."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from iotwin.common.errors import IotwinError
from iotwin.common.ranks import HOSTS_OF_RANKS, claimed_ports
from iotwin.workloads.launch import LaunchPlan, RankProcess, local_plan, main
from tests.conftest import ROOT
from tests.processes import wait_for


def python(program):
    return [sys.executable, "-c", program]


def waiting(told):
    """A rank that says its pid in a file and waits to be ended."""
    return RankProcess(["sh", "-c", f"echo $$ > {told}.new; mv {told}.new {told}; exec sleep 1000"])


def after(told, program):
    """A rank that runs `program` when the rank of `told` is there."""
    return RankProcess(python(f"import os, time\nwhile not os.path.exists({str(told)!r}): time.sleep(0.01)\n{program}"))


def gone(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


def test_each_rank_has_its_own_command_environment_log_and_place_in_the_record(tmp_path):
    plan = LaunchPlan(
        [
            RankProcess(python("import os; print(os.environ['STAGE'])"), {"STAGE": "first"}, tmp_path / "0.log"),
            RankProcess(python("import sys; print('second', file=sys.stderr)"), {}, tmp_path / "1.log", host="node7"),
        ],
        record=tmp_path / "launch.json",
    )
    ending = plan.run()
    assert (ending.exit_statuses, ending.stopped_by, ending.reason, ending.exit_status) == ([0, 0], None, None, 0)
    assert [(tmp_path / f"{rank}.log").read_text() for rank in (0, 1)] == ["first\n", "second\n"]
    record = json.loads((tmp_path / "launch.json").read_text())
    assert [rank["host"] for rank in record["ranks"]] == ["localhost", "node7"]
    assert [rank["environment"] for rank in record["ranks"]] == [{"STAGE": "first"}, {}]
    assert [rank["exit_status"] for rank in record["ranks"]] == [0, 0] and record["stopped_by"] is None
    assert all(gone(rank["pid"]) for rank in record["ranks"])


def test_the_pids_are_recorded_while_they_run(tmp_path):
    record = tmp_path / "launch.json"
    program = f"""
import json, os, time
while not os.path.exists({str(record)!r}): time.sleep(0.01)
[rank] = json.load(open({str(record)!r}))["ranks"]
assert rank["pid"] == os.getpid() and rank["exit_status"] is None
"""
    assert LaunchPlan([RankProcess(python(program))], record=record).run().exit_status == 0


def test_the_first_that_fails_is_named_with_its_last_words_and_ends_the_others(tmp_path):
    told, log = tmp_path / "pid", tmp_path / "1.log"
    failing = after(told, "print('a line'); print('the disk is full'); raise SystemExit(3)")
    ending = LaunchPlan([waiting(told), RankProcess(failing.command, {}, log, "node7")]).run()
    assert ending.stopped_by == 1 and ending.exit_status == 3 and ending.exit_statuses == [-signal.SIGTERM, 3]
    assert ending.reason == "rank 1 on node7 ended with exit status 3: the disk is full"
    assert gone(told.read_text())


def test_a_rank_that_does_not_end_when_asked_is_killed(tmp_path):
    told = tmp_path / "pid"
    stubborn = RankProcess(["sh", "-c", f"trap '' TERM; echo $$ > {told}.new; mv {told}.new {told}; while :; do sleep 1; done"])
    killed = after(told, f"os.kill(os.getpid(), {int(signal.SIGKILL)})")
    ending = LaunchPlan([stubborn, killed], grace_s=0.2).run()
    assert ending.reason == "rank 1 on localhost was killed by signal 9 (Killed)"
    assert ending.exit_statuses == [-signal.SIGKILL] * 2 and ending.exit_status == 137


def test_ranks_that_still_run_at_the_limit_are_named_and_ended(tmp_path):
    ending = LaunchPlan([waiting(tmp_path / "0"), waiting(tmp_path / "1")], limit_s=0.5).run()
    assert ending.reason == "ranks still running after the limit of 0.5 s: 0, 1"
    assert ending.stopped_by is None and ending.exit_status == 1


def test_a_rank_that_cannot_be_started_ends_those_before_it(tmp_path):
    told = tmp_path / "pid"
    with pytest.raises(IotwinError, match=r"rank 1 on node7 cannot be started: no-such-program: No such file"):
        LaunchPlan([waiting(told), RankProcess(["no-such-program"], host="node7")]).run()
    with pytest.raises(IotwinError, match=r"rank 0 on localhost cannot be started: .*/none/0.log: No such file"):
        LaunchPlan([RankProcess(["true"], {}, tmp_path / "none" / "0.log")]).run()


def test_ranks_die_with_a_launcher_that_is_killed(tmp_path):
    told = tmp_path / "pid"
    module = f"import os; open('{told}.new', 'w').write(str(os.getpid())); os.rename('{told}.new', '{told}'); input()"
    (tmp_path / "rank.py").write_text(module)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "iotwin.workloads.launch", "1", "rank"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        stdin=subprocess.PIPE,
    )
    wait_for(told.exists, "the rank's pid")
    launcher.kill()
    launcher.communicate()
    wait_for(lambda: gone(told.read_text()), "the end of the rank")


def test_a_plan_of_one_module_has_the_environment_that_torchrun_sets(tmp_path):
    plan = local_plan(["iotwin.workloads.bert", "--steps", "3"], 2, 29500, tmp_path)
    assert [process.environment for process in plan.processes] == [
        {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "RANK": rank, "LOCAL_RANK": rank} for rank in "01"
    ]
    assert all(process.command[-4:] == ["-m", "iotwin.workloads.bert", "--steps", "3"] for process in plan.processes)
    assert [process.log for process in plan.processes] == [tmp_path / "rank-0.log", tmp_path / "rank-1.log"]


def test_a_program_like_ssh_is_asked_by_the_end_of_its_stdin(tmp_path):
    told = tmp_path / "pid"
    reading = ["sh", "-c", f"trap '' TERM; echo $$ > {told}.new; mv {told}.new {told}; cat; exit 7"]
    ending = LaunchPlan([RankProcess(reading, ends_with_stdin=True), after(told, "raise SystemExit(3)")]).run()
    assert ending.exit_statuses == [7, 3] and ending.stopped_by == 1


def second_host(folder, program):
    """Start the second host's two ranks of three, which run `program`."""
    (folder / "rank.py").write_text(program)
    words = [sys.executable, "-m", "iotwin.workloads.launch", "--share", "127.0.0.1,127.0.0.2", "1", "2950", "3", "rank"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"}, **streams)


def test_a_share_of_several_hosts_ends_with_stdin(tmp_path, monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", HOSTS_OF_RANKS)
    program = f"import os, time; os.write(1, (' '.join(map(os.environ.get, {names})) + '\\n').encode()); time.sleep(1000)"
    launcher = second_host(tmp_path, program)
    expected = [f"{rank} {rank - 1} 3 127.0.0.1 2950 lo 127.0.0.1,127.0.0.2,127.0.0.2\n" for rank in (1, 2)]
    assert sorted(launcher.stdout.readline() for _ in expected) == expected
    assert launcher.communicate() == ("", "launch: the ranks were ended by the host that started them\n")
    assert launcher.returncode == 1


def test_a_share_names_the_rank_that_failed_before_it_ends_others(tmp_path):
    program = f"""
import os, signal, sys, time
told = {str(tmp_path / "told")!r}
if os.environ["RANK"] == "2":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    open(told, "w")
    time.sleep(1000)
while not os.path.exists(told): time.sleep(0.01)
sys.exit(3)
"""
    launcher = second_host(tmp_path, program)
    assert launcher.stderr.read() == f"launch: rank 1 on {os.uname().nodename} ended with exit status 3\nended\n"
    launcher.communicate()


def test_the_command_line_writes_logs_and_names_the_failure(tmp_path, monkeypatch, capsys):
    (tmp_path / "rank.py").write_text("import os, sys; print(sys.argv[1:]); raise SystemExit(int(os.environ['RANK']) * 5)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    logs = tmp_path / "logs"
    assert main(["--logs", str(logs), "2", "rank", "--steps", "3"]) == 5
    assert (logs / "rank-0.log").read_text() == "['--steps', '3']\n"
    said = "rank 1 on localhost ended with exit status 5: ['--steps', '3']"
    assert capsys.readouterr().err == f"launch: {said}\n"
    record = json.loads((logs / "launch.json").read_text())
    assert record["stopped_by"] == 1 and record["reason"] == said


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["0", "iotwin.workloads.bert"], 2, "launch: RANKS 0 must be at least 1"),
        (["2"], 2, "launch: name the MODULE to run"),
        (["--limit", "0", "2", "iotwin.workloads.bert"], 2, "launch: --limit 0.0 must be more than 0"),
        (["--logs", "/proc/none", "2", "iotwin.workloads.bert"], 1, "launch: --logs /proc/none: No such file"),
    ],
)
def test_bad_requests_are_one_line(capsys, arguments, status, message):
    assert main(arguments) == status
    error = capsys.readouterr().err
    assert error.startswith(message) and error.count("\n") == 1


def test_ports_that_one_has_claimed_or_bound_no_other_gets():
    with ExitStack() as claims:
        first, second = (claims.enter_context(claimed_ports(2)) for _ in range(2))
        assert {first, first + 1}.isdisjoint({second, second + 1})
    with socket.socket() as taken, claimed_ports(1) as free:
        taken.bind(("127.0.0.1", free))
        with claimed_ports(1) as other:
            assert other != free
