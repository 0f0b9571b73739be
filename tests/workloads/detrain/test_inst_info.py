"""The import of inst.info, the original's document: what it holds, relative names, and hostile content."""

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.errors import IotwinError
from iotwin.main import main
from iotwin.workloads.detrain.discover import discover
from iotwin.workloads.detrain.inst_info import read_inst_info
from iotwin.workloads.detrain.instrumentation import SURE, changed_sources, read_instrumentation
from tests.workloads.detrain.test_discover import SHAPES


def document(**changes) -> dict:
    """Return an inst.info as the original writes it for the shape music_transformer."""
    lines = {"epoch": "76", "loop": "78", "dl_call": "80", "update_call": "83"}
    info = {f"{name}_line_no": line for name, line in lines.items()}
    info |= {f"{name}_file_name": "music_transformer.py" for name in lines}
    loader = {
        "full_name": "data.Data.slide_seq2seq_batch", "module": "data", "init": ("data", "Data.__init__"), "iter": ("", ""),
        "next": ("data", "Data.slide_seq2seq_batch"), "persistent": False,
    }  # fmt: skip
    return {"dataloader": loader, "loop_type": {"type": "ON_CUSTOM"}, "code_info": info | changes}


@pytest.fixture
def folder(tmp_path):
    shutil.copy(SHAPES / "music_transformer.py", tmp_path)
    return tmp_path


def written(folder, content: object):
    path = folder / "inst.info"
    path.write_text(content if isinstance(content, str) else repr(content))
    return path


def test_the_lines_are_those_that_discovery_finds(folder):
    found = read_inst_info(written(folder, document()))
    expected = discover(folder / "music_transformer.py")
    assert (found.epoch, found.batch, found.data, found.update) == (
        expected.epoch, expected.batch, expected.data, expected.update,
    )  # fmt: skip
    assert (found.kind, found.script, found.source_sha256) == ("NEXT_CALL", expected.script, expected.source_sha256)
    assert found.loader.name == "data.Data.slide_seq2seq_batch" and found.loader.persistent is False and found.wrapper is None
    assert found.confidence >= SURE and not changed_sources(found)


def test_standard_iterators_and_wrappers(folder):
    content = document(wrapper_module="train", wrapper_func="Trainer.step")
    content["loop_type"], content["dataloader"]["persistent"] = {"type": "ON_DATASET"}, True
    content["dataloader"] = [content["dataloader"]]  # the original writes a list in some versions
    found = read_inst_info(written(folder, content))
    assert (found.kind, found.loader.persistent) == ("FOR_OVER_LOADER", True)
    assert (found.wrapper.module, found.wrapper.function) == ("train", "Trainer.step")


def test_files_are_relative_to_inst_info_or_else_to_the_current_directory(folder, monkeypatch):
    (folder / "notes").mkdir()
    path = written(folder / "notes", document())
    with pytest.raises(IotwinError, match=r"neither in the folder of inst\.info nor in the current directory"):
        read_inst_info(path)
    monkeypatch.chdir(folder)
    assert read_inst_info(path).script == str(folder / "music_transformer.py")


def test_lines_without_loops_are_not_sure(folder):
    found = read_inst_info(written(folder, document(loop_line_no="79")))
    assert found.confidence < SURE and found.reasons == [
        f"{folder / 'music_transformer.py'}:79: begins no loop; the script has changed"
    ]


WRONG = {
    "open('/etc/passwd').read()": "no dict literal",
    "[1, 2]": "no dict literal",
    "{": "no dict literal",
    "(" * 5000: "no dict literal",
    "{1: " * 100 + "1" + "}" * 100: "code_info is missing",
    "{1: " * 5000 + "1" + "}" * 5000: "no dict literal",
    "\0": "no dict literal",
    "{}": "code_info is missing",
    repr(document(epoch_line_no="-1")): "epoch_line_no must be a number of a line (got '-1')",
    repr(document(epoch_line_no="0")): "epoch_line_no must be a number",
    repr(document(epoch_line_no="1" * 5000)): "epoch_line_no must be a number",
    repr(document(epoch_line_no="7_6")): "epoch_line_no must be a number",
    repr(document(epoch_line_no=None)): "epoch_line_no must be a number",
    repr(document(epoch_line_no="999")): "has no line 999",
    repr(document(loop_file_name="../no_such_script.py")): "no_such_script.py is neither in the folder",
    repr(document(loop_file_name="a\0b")): "loop_file_name must be a text",
    repr(document(loop_file_name=3)): "loop_file_name must be a text",
    repr(document(loop_file_name="/dev/zero")): "/dev/zero is neither",
    repr({**document(), "loop_type": {"type": "ON_WHEELS"}}): "loop_type must be ON_DATASET or ON_CUSTOM",
    repr({**document(), "dataloader": {}}): "full_name must be a text",
}


@pytest.mark.parametrize("content", WRONG)
def test_wrong_content_ends_in_one_line(folder, capfd, content):
    path = written(folder, content)
    assert main(["detrain", "import", str(path), "--json"]) == 1
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and WRONG[content] in printed.err, printed.err


def test_a_missing_file_ends_in_one_line(tmp_path, capfd):
    assert main(["detrain", "import", str(tmp_path / "none.info")]) == 1
    assert "none.info does not exist" in capfd.readouterr().err


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_literal_is_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "literals"
    folder.mkdir(exist_ok=True)
    shutil.copy(SHAPES / "music_transformer.py", folder)
    content = document()
    section = data.draw(st.sampled_from([content, *content.values()]))
    section[data.draw(st.sampled_from(sorted(section)))] = data.draw(_VALUES)
    try:
        found = read_inst_info(written(folder, content))
    except IotwinError as error:
        assert "\n" not in str(error) and "inst.info" in str(error)
    else:
        assert found.batch.line == 78 and found.update.line == 83


def test_the_command_writes_inst_json(folder, capfd):
    path, output = written(folder, document()), folder / "inst.json"
    assert main(["detrain", "import", str(path), "-o", str(output), "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert [printed[key]["line"] for key in ("epoch", "batch", "data", "update")] == [76, 78, 80, 83]
    assert read_instrumentation(output).update.line == 83
    assert main(["detrain", "import", str(path)]) == 0
    assert "mt.train_on_batch" in capfd.readouterr().out
