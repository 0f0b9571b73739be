"""What a user can do wrong, and what a kill, a full disk or a flipped bit does to a data set."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from iotwin.commands.generate import GenerateCommand
from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen import generate as module
from iotwin.datagen.data_set_files import PARTIAL_SUFFIX
from iotwin.datagen.generate import generate, plan, remove_data_set
from iotwin.datagen.layouts import BertLayout, DlrmLayout, FormatLayout, Unet3dLayout
from iotwin.datagen.manifest import JOURNAL_NAME, MANIFEST_NAME, start_journal
from iotwin.datagen.verify import verify
from iotwin.main import _Parser
from tests.conftest import run_iotwin

SMALL = Unet3dLayout(scale=0.1)
LAYOUTS = [Unet3dLayout(), BertLayout(), DlrmLayout()]


def content(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def run(*arguments):
    parser = _Parser()
    GenerateCommand().prepare_parser(parser)
    return GenerateCommand().run(parser.parse_args([str(argument) for argument in arguments])).document


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.workload)
def test_plan_of_a_terabyte(layout):
    planned = plan(layout, size_bytes=10**12)
    assert planned.size_bytes == pytest.approx(10**12, rel=0.001) and planned.size_bytes <= 10**12
    names = {piece.name for unit in range(len(planned.unit_bytes)) for piece in planned.pieces(unit)}
    assert len(names) == planned.files
    for unit in (0, len(planned.unit_bytes) // 2, len(planned.unit_bytes) - 1):
        assert sum(piece.size_bytes for piece in planned.pieces(unit)) == planned.unit_bytes[unit]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.workload)
def test_requests_that_make_no_data_set(layout, tmp_path):
    for request, message in (
        ({"size_bytes": 100}, f"too small for one {layout.workload} sample"),
        ({"samples": 0}, "ask for at least 1"),
        ({"samples": 1, "seed": -1}, "seed -1"),
        ({}, "either a size or a number"),
        ({"samples": 1, "size_bytes": 10**9}, "either a size or a number"),
    ):
        with pytest.raises(UsageError, match=message):
            generate(layout, tmp_path / "data", **request)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["unte3d", "--samples", 1], "did you mean 'unet3d'"),
        (["--samples", 1], "name the workload"),
        (["unet3d", "--size", "0"], "at least one byte"),
        (["unet3d", "--size=-5MiB"], "positive"),
        (["unet3d", "--size", "5XB"], "unknown unit 'XB'"),
        (["unet3d", "--samples", 1, "--scale", 0], "scale 0.0 is out of range"),
        (["dlrm", "--samples", 1, "--scale", 0.5], "--scale shrinks unet3d"),
        (["unet3d", "--samples", 1, "--entropy", 2], "entropy 2.0 is a share"),
        (["unet3d", "--samples", 1, "--dedup", 0.5], "--dedup goes with --config"),
        (["bert", "--samples", 1, "--entropy", 0.5], "--entropy goes with unet3d's images and with --config"),
        (["dlrm", "--samples", 1, "--form", "txt"], "did you mean 'text'"),
        (["bert", "--samples", 1, "--form", "text"], "--form chooses among dlrm's"),
    ],
)
def test_command_line_refuses_in_one_line(arguments, message, tmp_path):
    with pytest.raises(UsageError, match=message) as caught:
        run(*arguments, "-o", tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_command_line_refuses_to_generate_without_workers(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        run("unet3d", "--samples", 1, "--workers", 0, "-o", tmp_path / "data")
    assert "--workers: must be at least 1 (got 0)" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_command_writes_plans_and_verifies(tmp_path):
    planned = run("unet3d", "--samples", 2, "--scale", 0.1, "-o", tmp_path / "data", "--dry-run")
    assert not (tmp_path / "data").exists()
    written = run("unet3d", "--samples", 2, "--scale", 0.1, "-o", tmp_path / "data")
    for key in ("samples", "files", "size_bytes"):
        assert written[key] == planned[key]
    on_disk = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.npy"))
    assert on_disk == written["size_bytes"]
    assert run("-o", tmp_path / "data", "--verify") == written | {"state": "verified"}


def test_same_request_again_changes_nothing(tmp_path):
    generate(SMALL, tmp_path, samples=2, workers=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    generate(SMALL, tmp_path, samples=2, workers=1)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_format_request_with_dimensions_is_known_again(tmp_path):
    layout = FormatLayout(format="npy", record_dims=(3, 4))
    manifest = generate(layout, tmp_path, samples=2, workers=1)
    assert generate(layout, tmp_path, samples=2, workers=1) == manifest


def test_directories_with_other_content_are_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(IotwinError, match="not this data set's"):
        generate(SMALL, tmp_path, samples=2)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    generate(SMALL, tmp_path, samples=4, workers=1, existing="replace")
    with pytest.raises(IotwinError, match="another data set"):
        generate(SMALL, tmp_path, samples=2)
    generate(SMALL, tmp_path, samples=2, workers=1, existing="replace")
    assert len(SMALL.discover(tmp_path)) == 2
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_empty_folders_are_no_other_content(tmp_path):
    (tmp_path / "train" / "0").mkdir(parents=True)
    assert generate(SMALL, tmp_path, samples=2, workers=1).request.samples == 2


def test_another_data_set_is_written_over_what_is_there_if_that_is_to_stay(tmp_path):
    layout = FormatLayout(format="npy", record_bytes=100)
    generate(layout, tmp_path, samples=2, workers=1)
    (tmp_path / "train" / "img_0_of_3.npy").write_text("another program's")
    (tmp_path / "train" / f"img_1_of_3.npy{PARTIAL_SUFFIX}").write_bytes(bytes(10_000))  # longer than the new file
    start_journal(tmp_path, plan(layout, samples=3, seed=5).request)  # of a generation that was killed
    generate(layout, tmp_path, samples=3, workers=1, existing="keep")
    names = {path.name for path in (tmp_path / "train").iterdir()}
    assert names == {*(f"img_{i}_of_2.npy" for i in range(2)), *(f"img_{i}_of_3.npy" for i in range(3))}
    assert verify(tmp_path).request.samples == 3
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(IotwinError, match=r"manifest.json is not the manifest of an iotwin data set"):
        generate(layout, tmp_path, samples=4, workers=1, existing="keep")


def test_a_data_set_is_removed_without_other_files(tmp_path):
    generate(FormatLayout(format="npy", record_bytes=100), tmp_path / "data", samples=2, workers=1)
    remove_data_set(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    generate(FormatLayout(format="npy", record_bytes=100), tmp_path / "data", samples=2, workers=1)
    (tmp_path / "data" / "train" / "mine.npy").write_text("keep")
    remove_data_set(tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").rglob("*")] == ["train", "mine.npy"]


def test_a_directory_that_cannot_be_written_is_one_line():
    refused = run_iotwin("generate", "unet3d", "--samples", "1", "-o", "/proc/none")
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1 and "/proc/none" in refused.stderr


def test_a_file_in_the_way_and_a_second_writer_are_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(IotwinError, match="is a file"):
        generate(SMALL, tmp_path / "file", samples=2)
    real = module.run_units

    def meanwhile(writer, units, workers, advance):
        monkeypatch.setattr(module, "run_units", real)
        with pytest.raises(IotwinError, match="another iotwin generate is writing"):
            generate(SMALL, tmp_path / "data", samples=2, workers=1)
        yield from real(writer, units, workers, advance)

    monkeypatch.setattr(module, "run_units", meanwhile)
    generate(SMALL, tmp_path / "data", samples=2, workers=1)
    verify(tmp_path / "data", workers=1)


def test_no_space_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(IotwinError, match=r"are needed but 1000 B are free"):
        generate(SMALL, tmp_path, samples=2)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_no_final_name(tmp_path):
    """A file-size limit stands for the full disk: the write fails in the middle of the biggest case."""
    code = (
        "import resource,signal,sys\n"
        "from pathlib import Path\n"
        "from iotwin.datagen.generate import generate\n"
        "from iotwin.datagen.layouts import Unet3dLayout\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "generate(Unet3dLayout(scale=0.1), Path(sys.argv[1]), samples=3, workers=1)\n"
    )
    failed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True)
    assert "_x.npy.iotwin-partial: File too large; make room" in failed.stderr
    assert not list((tmp_path / "data").glob("*.npy"))
    generate(SMALL, tmp_path / "data", samples=3, workers=1)
    verify(tmp_path / "data")


def test_killed_generation_goes_on_and_ends_with_the_same_bytes(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    generate(Unet3dLayout(scale=0.3), whole, samples=20, workers=1)
    code = (  # and it cannot end before it is killed
        "import sys, time\n"
        "from pathlib import Path\n"
        "from iotwin.datagen import generate\n"
        "from iotwin.datagen.layouts import Unet3dLayout\n"
        "generate.write_manifest = lambda *_: time.sleep(600)\n"
        "generate.generate(Unet3dLayout(scale=0.3), Path(sys.argv[1]), samples=20, workers=2)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(broken)])
    journal = broken / JOURNAL_NAME
    while process.poll() is None and len([*broken.glob("*.npy")]) < 6:  # a file is in the journal before it is in its place
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = {path.name: path.stat().st_mtime_ns for path in broken.glob("*.npy")}
    assert finished and not (broken / MANIFEST_NAME).exists()
    journalled = journal.read_text()
    generate(Unet3dLayout(scale=0.3), broken, samples=20, workers=1)
    assert content(broken) == content(whole)
    kept = [name for name in finished if name in journalled]
    assert len(kept) >= 6
    assert all((broken / name).stat().st_mtime_ns == finished[name] for name in kept), "a finished file was written again"


def test_interrupted_shared_file_goes_on(tmp_path, monkeypatch):
    layout = DlrmLayout()
    monkeypatch.setattr(DlrmLayout, "UNIT_SAMPLES", 5000)
    generate(layout, tmp_path / "whole", samples=20_000, workers=1)
    real, calls = module.run_units, []

    def interrupted(writer, units, workers, advance):
        for answer in real(writer, units, workers, advance):
            calls.append(answer)
            if len(calls) == 3:
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(module, "run_units", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate(layout, tmp_path / "broken", samples=20_000, workers=1)
    assert not (tmp_path / "broken" / layout.TRAIN_NAME).exists()
    generate(layout, tmp_path / "broken", samples=20_000, workers=1)
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_resume_writes_again_what_was_lost(tmp_path, monkeypatch):
    """After a power cut the journal may promise files that the disk does not have."""
    generate(SMALL, tmp_path, samples=4, workers=1)
    expected = content(tmp_path)
    monkeypatch.setattr(module, "write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        generate(SMALL, tmp_path, samples=4, workers=1, existing="replace")
    monkeypatch.undo()
    (tmp_path / "case_00001_x.npy").unlink()
    os.truncate(tmp_path / "case_00002_y.npy", 10)
    with (tmp_path / JOURNAL_NAME).open("ab") as journal:
        journal.write(b'{"unit": 3, "pie{"unit": 2, "pieces": []}\n{"unit": 3, "pie')
    generate(SMALL, tmp_path, samples=4, workers=2)
    assert content(tmp_path) == expected


def test_verify_finds_every_kind_of_damage(tmp_path):
    manifest = generate(SMALL, tmp_path, samples=3, workers=1)
    assert verify(tmp_path, workers=2) == manifest
    path = tmp_path / "case_00001_x.npy"
    good = path.read_bytes()
    for damage, message in (
        (lambda: path.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:]), "case_00001_x.npy: its content differs"),
        (lambda: path.write_bytes(good[:-1]), f"case_00001_x.npy: it has {len(good) - 1} bytes instead of {len(good)}"),
        (lambda: path.write_bytes(good + b"\0"), "bytes instead of"),
        (path.unlink, "case_00001_x.npy: it is missing"),
    ):
        damage()
        with pytest.raises(IotwinError, match=message):
            verify(tmp_path, workers=1)
    with pytest.raises(IotwinError, match="not a finished iotwin data set"):
        verify(tmp_path / "none")
    (tmp_path / MANIFEST_NAME).write_text("[]")
    with pytest.raises(IotwinError, match="not the manifest of an iotwin data set"):
        verify(tmp_path)


def test_data_sets_of_another_version_are_named_and_replaced(tmp_path):
    generate(SMALL, tmp_path, samples=2, workers=1)
    manifest = tmp_path / MANIFEST_NAME
    manifest.write_text(manifest.read_text().replace('"generator": 2', '"generator": 1').replace("xxh3_128", "sha256"))
    with pytest.raises(IotwinError, match="made by another version of iotwin"):
        verify(tmp_path, workers=1)
    with pytest.raises(IotwinError, match="another data set"):
        generate(SMALL, tmp_path, samples=2, workers=1)
    generate(SMALL, tmp_path, samples=2, workers=1, existing="replace")
    verify(tmp_path, workers=1)


def test_a_killed_worker_is_one_clear_line(tmp_path):
    from iotwin.datagen.pool import run_units

    with pytest.raises(IotwinError, match="a worker process was killed"):
        list(run_units(_die, range(10**6), 2, lambda _: None))


def test_a_failing_or_abandoned_worker_thread_ends(tmp_path):
    from iotwin.datagen.pool import run_units

    for _ in range(2):  # the caller's own thread and a process take one each
        with pytest.raises(IotwinError, match=r"^the disk is gone$"):
            list(run_units(_fail, [1, 2], 2, lambda _: None))
    before = threading.active_count()
    units = run_units(_write_for_long, range(10), 2, lambda _: None)
    next(units)
    units.close()
    assert threading.active_count() == before and not multiprocessing.active_children()


def _fail(unit, written):
    raise OSError(5, "the disk is gone")


def _write_for_long(unit, written):
    if unit:
        while True:
            written(1 << 20)
    return []


def _die(unit, written):
    if multiprocessing.parent_process():
        os.kill(os.getpid(), signal.SIGKILL)
    return []


def test_the_artifacts_command_still_works(tmp_path):
    """Only how it calls the new command is looked at here: the new command has its own tests."""
    script = module.__file__.replace("generate.py", "data_generation.py")
    code = (
        "import os,runpy,sys\n"
        "os.execve = lambda *call: print(call[1][1:])\n"
        "sys.argv[0] = sys.argv[1]; del sys.argv[1]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    arguments = ["-o", "d", "-s", "1000", "-w", "imseg"]
    done = subprocess.run([sys.executable, "-c", code, script, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["-P", "-m", "iotwin", "generate", "unet3d", "-o", "d", "--size", "1000"])
    call = [module.__file__.replace("generate.py", "generation.sh"), "d", "16GB"]
    done = subprocess.run(call, env=os.environ | {"PYTHON": "echo"}, capture_output=True, text=True, check=True)
    assert [line.split()[1:] for line in done.stdout.splitlines()] == [
        ["-w", workload, "-o", f"d/{workload}", "-s", "16GB"] for workload in ("unet3d", "bert", "dlrm")
    ]
    refused = subprocess.run([sys.executable, script, "-o", "d", "-s", "1", "-w", "gpt"], capture_output=True, text=True)
    assert refused.returncode == 2 and "invalid choice: 'gpt'" in refused.stderr
