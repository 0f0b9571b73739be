"""iotwin checkfreq: the documents of its actions, and what they refuse."""

import json

import pytest

from tests.processes import call, one_line

PLAN = (
    "plan", "--iteration-time", "0.2", "--update-time", "0.02", "--host-copy", "0.6", "--device-copy", "0.02", "--write-time",
    "2.0", "--size", "1GiB", "--memory-total", "12GiB", "--overhead", "0.05",
)  # fmt: skip
GOODPUT = ("goodput", "--iteration-time", "0.2", "--checkpoint-time", "2.6", "--load-time", "5", "--interval", "13")


def document(*arguments):
    done = call("checkfreq", *arguments, "--json")
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)


def refused(*arguments, status=2):
    done = call("checkfreq", *arguments)
    assert done.returncode == status and not done.stdout
    return one_line(done)


def test_plan_on_the_device_and_on_the_host():
    found = document(*PLAN, "--memory-used", "4GiB")
    assert found == {
        "interval": 13,
        "snapshot": "device",
        "stall_s": 0.02,
        "interval_no_overlap": 13,
        "interval_bounded": 2,
        "interval_mtbf": None,
        "overhead": pytest.approx(0.02 / 2.6),
    }
    found = document(*PLAN, "--memory-used", "12GiB", "--mtbf", "1h", "--in-flight", "1")
    assert (found["interval"], found["snapshot"], found["stall_s"]) == (275, "host", pytest.approx(0.42))
    assert (found["interval_no_overlap"], found["interval_bounded"], found["interval_mtbf"]) == (11, 42, 275)
    shown = call("checkfreq", *PLAN, "--memory-used", "12GiB").stdout
    assert "every 42 steps, snapshot on the host" in shown and "420 ms, 5.00%" in shown


def test_plan_takes_ties_as_decimals_and_no_memory_with_any_unit():
    tie = (*PLAN, "--device-copy", "0.42")
    assert document(*tie, "--memory-used", "4GiB")["snapshot"] == "device"
    for none in ("0B", "0MiB"):
        assert document(*tie, "--memory-used", none) == document(*tie, "--memory-used", "0")
        assert document(*tie, "--memory-total", none) == document(*tie, "--memory-total", "0")


def test_plan_without_a_device_and_with_two_in_flight():
    line = (
        "plan",
        "--iteration-time",
        "200ms",
        "--host-copy",
        "0.1",
        "--write-time",
        "2",
        "--size",
        "1MiB",
        "--overhead",
        "0.05",
    )
    assert document(*line)["interval"] == 11 and document(*line)["snapshot"] == "host"
    assert document(*line, "--in-flight", "2")["interval"] == 6


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--iteration-time", "0"),
        ("--overhead", "0"),
        ("--in-flight", "0"),
        ("--mtbf", "soon"),
        ("--size", "-1"),
        ("--write-time", "x"),
    ],
)
def test_plan_refuses(option, value):
    assert option in refused(*PLAN, f"{option}={value}") or option == "--size"


def made_series(path, header="seconds,checkpoint,stall_s"):
    rows = [(1.7, 1, 0.7) if step % 14 == 0 else (1.0, 0, 0) for step in range(10 * 14)]
    rows += [(1.98, 1, 0.98) if step % 14 == 0 else (1.0, 0, 0) for step in range(5 * 14)]
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))
    return path


def test_tune_says_what_the_controller_does(tmp_path):
    found = document("tune", made_series(tmp_path / "steps.csv"), "--overhead", "0.05", "--interval", "14")
    assert found.keys() == {"interval", "windows", "changes"} and (found["interval"], found["changes"]) == (20, 1)
    assert [window["interval"] for window in found["windows"]] == [14] * 10 + [20] * 5
    assert found["windows"][0] == {
        "first_step": 0,
        "last_step": 13,
        "base_s": 1.0,
        "overhead": pytest.approx(0.05),
        "stall_share": pytest.approx(0.05),
        "interference_share": pytest.approx(0, abs=1e-9),
        "interval": 14,
    }
    shown = call("checkfreq", "tune", tmp_path / "steps.csv", "--overhead", "0.05", "--interval", "14").stdout
    assert "every 20 steps after 1 change" in shown


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seconds,checkpoint\n1,0", "no column stall_s"),
        ("seconds,checkpoint,stall_s\n1,0", ":2: '1,0'"),
        ("seconds,checkpoint,stall_s\n1,0,0\n1,2,0", ":3: checkpoint"),
        ("seconds,checkpoint,stall_s\n1,1,2", "hold stall_s"),
        ("seconds,checkpoint,stall_s\nnan,1,0", "not finite"),
        ("", "no column seconds"),
    ],
)
def test_tune_names_the_line_it_cannot_read(tmp_path, text, said):
    (tmp_path / "steps.csv").write_text(text)
    assert said in refused("tune", tmp_path / "steps.csv", "--overhead", "0.05", "--interval", "14", status=1)


def test_tune_refuses(tmp_path):
    series = made_series(tmp_path / "steps.csv")
    assert "--overhead" in refused("tune", series, "--overhead", "0", "--interval", "14")
    assert "is not a file" in refused("tune", tmp_path / "none.csv", "--overhead", "0.05", "--interval", "14")


def test_goodput_by_rate_and_by_trace(tmp_path):
    found = document(*GOODPUT, "--mtbf", "3600", "--system", "checkfreq")
    assert found == {
        "goodput_steps_per_s": pytest.approx((1 - 7.6 / 3600) / 0.2),
        "useful_share": pytest.approx(1 - 7.6 / 3600),
        "redo_s_per_failure": pytest.approx(7.6),
        "failures": None,
    }
    (tmp_path / "gpus.csv").write_text("Time,GPUs\n0,16\n1800,8\n2000,10\n3600,16\n")
    found = document(*GOODPUT, "--failures", tmp_path / "gpus.csv", "--system", "sync")
    assert found["failures"] == 3 and found["goodput_steps_per_s"] == pytest.approx((1 - 3 * 6.3 / 3600) / 0.4)
    (tmp_path / "gpus.csv").write_text("Time,GPUs\n5,16\n")
    assert "must rise" in refused(*GOODPUT, "--failures", tmp_path / "gpus.csv", status=1)
    assert "--mtbf" in refused(*GOODPUT, "--mtbf", "0")


def test_probe_measures_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "out").mkdir()
    first = document("probe", tmp_path / "out", "--size", "64KiB")
    assert first.keys() == {
        "directory",
        "file_system",
        "device",
        "write_bytes_per_s",
        "fsync_s",
        "size_bytes",
        "cached",
    }
    assert not first["cached"] and first["size_bytes"] == 65536 and first["write_bytes_per_s"] > 0
    assert document("probe", tmp_path / "out", "--size", "64KiB") == {**first, "cached": True}
    assert not document("probe", tmp_path / "out", "--size", "32KiB")["cached"]
    assert not document("probe", tmp_path / "out", "--size", "64KiB", "--fresh")["cached"]
    assert not list((tmp_path / "out").iterdir())
    assert "is no directory" in refused("probe", tmp_path / "none")
