"""What a user can get wrong on the command line: one line on stderr, nothing on stdout, an exit status, nothing left behind."""

import os
import socket
from pathlib import Path

import pytest

from tests.conftest import run_iotwin
from tests.processes import call, one_line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["doctro"], "unknown command 'doctro' (did you mean 'doctor'?)"),
        (["--vresion"], "unknown option '--vresion' (did you mean '--version'?)"),
        (["compare"], "the following arguments are required: A, B"),
        (["set", "make"], "the following arguments are required: DIR;"),
        (["advise"], "the following arguments are required: TRACE;"),
        (["detrain", "run"], "the following arguments are required: SCRIPT"),
        (["doctor", "now"], "unexpected argument 'now'"),
        (["info", "TRACE", "--jsn"], "iotwin info: unknown option '--jsn' (did you mean '--json'?)"),
        (["report", "TRACE", "--outptu=x"], "required"),
        (["fit", "TRACE", "-o", "x.yaml", "--outptu=x"], "unknown option '--outptu=x' (did you mean '--output'?)"),
        (["generate", "unte3d", "-o", "d", "--samples", "2"], "(did you mean 'unet3d'?)"),
        (["generate", "unet3d", "-o", "d", "--samples", "two"], "invalid int value: 'two'"),
        (["trace", "-o", "t", "--backend", "libbfp", "--", "true"], "(did you mean 'libbpf'?)"),
        (["trace", "-o", "t", "--interval", "soon", "--", "true"], "duration 'soon'"),
        (["trace", "-o", "t"], "no command given"),
        (["plot", "timelin", "TRACE", "-o", "p.png"], "'timelin'"),
        (["plot", "timeline", "TRACE", "-o", "p.gif"], ".png or .svg or .pdf"),
        (["plot", "timeline", "TRACE", "-o", "p.png", "--zoom", "epocj:1"], "--zoom 'epocj:1' is not known"),
        (["fit", "TRACE", "-o", "."], "is a directory"),
        (["emulate", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["emulate", "bad.yaml"], "bad.yaml: reader.batchsize: unknown key (did you mean 'batch_size'?)"),
        (["emulate", "dlio.yaml"], "dlio.yaml: reader.transfer_size: expected int, got str; sizes are numbers of bytes"),
        (["emulate", "good.yaml", "faster"], "'faster' is not an override"),
        (["emulate", "text.yaml"], "is not a workload"),
        (["emulate", "code.yaml"], "is not YAML"),
        (["emulate", "."], "cannot be read"),
        (["emulate", "TRACE"], "make its twin: iotwin fit"),
        (["import", "TRACE", "-o", "t"], "is an iotwin trace already"),
        (["trace", "-o", "good.yaml", "--", "true"], "good.yaml is a file"),
        (["export", "TRACE", "-o", "/dev/none", "--format", "csv"], "/dev/none is no regular file"),
        (["generate", "--config", "bad.yaml", "-o", "d"], "has no section 'dataset'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_request_is_one_line_and_status_2(arguments, expected, trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("reader: {batchsize: 3}\n")
    (tmp_path / "good.yaml").write_text("reader: {batch_size: 3}\n")
    (tmp_path / "dlio.yaml").write_text("reader: {transfer_size: 1MiB}\n")
    (tmp_path / "text.yaml").write_text("nothing but text\n")
    (tmp_path / "code.yaml").write_text(f'!!python/object/apply:os.system ["touch {tmp_path}/run"]\n')
    before = sorted(tmp_path.rglob("*"))
    result = call(*(trace if word == "TRACE" else word for word in arguments))
    assert result.returncode == 2, result.stderr
    assert expected in one_line(result)
    assert one_line(result).startswith("iotwin")
    assert result.stdout == ""
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "what", ["nothing", "a directory", "an empty directory", "a file", "an empty file", "a socket", "a broken link", "a data set"]
)
@pytest.mark.parametrize("command", ["info", "compare", "recover"])
def test_what_is_no_trace_is_named(command, what, tmp_path, trace, monkeypatch):
    path = tmp_path / "thing"
    if "directory" in what:
        path.mkdir()
        if what == "a directory":
            (path / "manifest.json").mkdir()
    elif "file" in what:
        path.write_bytes(b"" if "empty" in what else b"PK\x03\x04")
    elif what == "a data set":
        path.mkdir()
        (path / "manifest.json").write_text('{"samples": 3}')
    elif what == "a socket":
        with socket.socket(socket.AF_UNIX) as server:
            monkeypatch.chdir(tmp_path)  # the name of a socket is at most 107 bytes
            server.bind(path.name)
    elif what == "a broken link":
        path.symlink_to("nowhere")
    others = [trace] if command == "compare" else []
    result = call(command, path, *others)
    assert result.returncode == 1
    assert str(path) in one_line(result)


@pytest.mark.parametrize("command", ["info", "compare", "fit", "plot", "report"])
def test_every_reader_refuses_a_cut_off_trace_and_writes_nothing(command, trace, tmp_path):
    cut = tmp_path / "cut.trace"
    cut.mkdir()
    (cut / "manifest.json").write_text((trace / "manifest.json").read_text().replace('"complete"', '"recording"'))
    arguments = {
        "info": ["info", cut],
        "compare": ["compare", trace, cut],
        "fit": ["fit", cut, "-o", tmp_path / "t.yaml"],
        "plot": ["plot", "timeline", trace, cut, "-o", tmp_path / "t.png"],
        "report": ["report", cut, "-o", tmp_path / "r.html"],
    }[command]
    result = call(*arguments)
    assert result.returncode == 1
    assert f"iotwin recover {cut}" in one_line(result)
    assert [path.name for path in tmp_path.iterdir()] == ["cut.trace"]


@pytest.mark.parametrize("content", ["data/precious", "notes.txt", "summary.json", "data"])
def test_the_demo_never_replaces_what_is_not_its_own(content, tmp_path):
    """A folder `data` or a `summary.json` is what many directories hold."""
    (tmp_path / content).parent.mkdir(exist_ok=True)
    (tmp_path / content).write_text("mine")
    for arguments in ([], ["--force"]):
        result = call("demo", "-o", tmp_path, *arguments)
        assert result.returncode == 2
        assert "other files" in one_line(result)
        assert (tmp_path / content).read_text() == "mine"


def test_the_demo_is_refused_on_a_file(tmp_path):
    (tmp_path / "demo").write_text("mine")
    result = call("demo", "-o", tmp_path / "demo")
    assert result.returncode == 2 and "is a file" in one_line(result)


@pytest.mark.parametrize("command", ["fit", "plot", "report"])
def test_a_place_that_is_not_there_is_named_before_any_work(command, trace, tmp_path):
    name = {"fit": "t.yaml", "plot": "t.png", "report": "r.html"}[command]
    words = ["plot", "timeline"] if command == "plot" else [command]
    result = call(*words, trace, "-o", tmp_path / "missing" / name)
    assert result.returncode == 1
    assert "missing is not a directory" in one_line(result)


def test_a_full_disk_under_stdout_is_one_line(trace):
    with Path("/dev/full").open("w") as full:
        result = run_iotwin("info", trace, "--json", stdout=full, stderr=-1)
    assert result.returncode == 1
    assert "No space left" in one_line(result)


def test_a_reader_that_goes_away_is_no_error(trace):
    reading, writing = os.pipe()
    os.close(reading)
    result = run_iotwin("info", trace, stdout=writing, stderr=-1)
    os.close(writing)
    assert result.returncode == 0 and result.stderr == ""


def test_as_a_process_of_its_own(tmp_path):
    """The tests above call the command line in their own process; this is what a shell sees."""
    result = run_iotwin("info", tmp_path / "nothing")
    assert (result.returncode, result.stdout) == (1, "")
    assert one_line(result) == f"iotwin info: {tmp_path / 'nothing'}: no such trace; check the path"


def test_debug_shows_where(tmp_path):
    result = run_iotwin("info", tmp_path / "nothing", "--debug")
    assert result.returncode == 1 and "Traceback" in result.stderr and "no such trace" in result.stderr
