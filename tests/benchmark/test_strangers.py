"""Workloads that somebody else wrote: nothing of the environment leaves, nothing takes for ever, no file of others is lost."""

import http.server
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.common.errors import IotwinError, UsageError
from iotwin.workload_yaml import Checkpoint, CheckpointFile, Config, Dataset, Model, Train, Twin, TwinCheckpoint, load
from tests.processes import call, one_line


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail instead of running for ever."""

    def give_up(*_: object) -> None:
        raise AssertionError(f"still ran after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def written(folder: Path, text: str) -> Path:
    path = folder / "twin.yaml"
    path.write_text(text)
    return path


def test_no_variable_of_the_environment_goes_to_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    monkeypatch.setenv("SECRET", "hunter2")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yaml = f'dataset: {{data_folder: "{url}/${{oc.env:SECRET}}", format: npy}}\noutput: {{folder: {tmp_path}/out}}\n'
        done = call("emulate", written(tmp_path, yaml))
        server.shutdown()
    assert asked == []
    assert done.returncode == 2 and "takes a variable of the environment" in one_line(done)


@pytest.mark.parametrize(
    "text",
    [
        "storage: {storage_type: s3, storage_options: {endpoint_url: 'http://x/${oc.env:HOME}'}}\n",
        "storage: {storage_type: s3}\ndataset: {data_folder: '${oc.env:HOME}'}\n",
        "model: {name: '${oc.env:HOME}'}\ndataset: {data_folder: 's3://bucket/${model.name}'}\n",
        "dataset: {data_folder: 'simplecache::${oc.env:HOME}'}\n",
    ],
)
def test_no_way_round(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="takes a variable of the environment"):
        load(written(tmp_path, text))


def test_a_local_path_may_still_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch")
    config = load(written(tmp_path, "dataset: {data_folder: '${oc.env:SCRATCH}/data'}\n"))
    assert config.dataset.data_folder == "/scratch/data"


ALIASES = "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9) if level else '1, 2, 3, 4, 5, 6, 7, 8, 9'}]\n"
    for level in range(10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 10)
)
NAMES = ("dataset.data_folder", "output.folder", "checkpoint.checkpoint_folder", "storage.storage_root")
TIMES = "".join(
    f"{name.split('.')[0]}: {{{name.split('.')[1]}: '{f'${{{inner}}}' * 50 if inner else 'x'}'}}\n"
    for name, inner in zip(NAMES, (*NAMES[1:], ""), strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ALIASES, "stand for more than"),
        (MERGES, "stand for more than"),
        (TIMES, r"\$\{"),
        ("model: {name: '" + "${train.epochs}" * 20_000 + "'}\n", r"\$\{"),
        ("a: &a [*a]\n", "refers to itself"),
        ("a: " + "[" * 100_000 + "]" * 100_000 + "\n", "nested more than 64 deep"),
    ],
    ids=["aliases", "merged mappings", "interpolations", "many interpolations", "itself", "nested"],
)
def test_a_yaml_that_never_ends_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with within(20), pytest.raises(UsageError, match=says):
        load(written(tmp_path, text))
    (tmp_path / "dlio.yaml").write_text("dataset: {format: npy}\n" + text)
    with within(20):
        done = call("generate", "--config", tmp_path / "dlio.yaml", "-o", tmp_path / "ds", "--samples", "1", "--dry-run")
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr


def test_a_yaml_of_any_size_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "# ")
    os.truncate(path, 1 << 40)
    with within(20), pytest.raises(UsageError, match="holds more than 64 MiB"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "train: {seed: 100000000000000000000}",
        "dataset: {num_samples_per_file: 9223372036854775807}",
        "dataset: {record_element_type: ',,,,'}",
        "dataset: {record_element_type: '(2,)u1'}",
        'dataset: {record_element_type: "a\\nb"}',
        "reader: {transformed_record_element_type: '{'}",
        "output: {log_file: ../../escaped.log}",
        "output: {log_file: ''}",
    ],
)
def test_values_that_no_run_can_have_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, f"{text}\nworkflow: {{generate_data: true, train: false}}\n")
    done = call("emulate", path, f"++workload.dataset.data_folder={tmp_path}/data", f"++workload.output.folder={tmp_path}/out")
    assert done.returncode == 2 and not (tmp_path / "data").exists(), done.stderr
    one_line(done)


def recorded(folder: Path, *names: str, epochs: int = 2, keep: int | None = None) -> Config:
    files = [CheckpointFile(name=name, write_sizes=[(100, 1)]) for name in names]
    return Config(
        dataset=Dataset(data_folder="d"),
        train=Train(epochs=epochs),
        checkpoint=Checkpoint(checkpoint_folder=str(folder)),
        twin=Twin(checkpoint=TwinCheckpoint(files=files, keep=keep)),
    )


def of_model(folder: Path, keep: int | None = None) -> Config:
    return Config(
        model=Model(model_size_bytes=1000),
        dataset=Dataset(data_folder="d"),
        checkpoint=Checkpoint(checkpoint_folder=str(folder)),
        twin=Twin(checkpoint=TwinCheckpoint(keep=keep)),
    )


def test_no_checkpoint_goes_through_a_linked_folder(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "sub").symlink_to(tmp_path / "outside")
    with pytest.raises(IotwinError, match="leads through the link 'sub'"):
        CheckpointWriter(recorded(tmp_path / "ck", "sub/last.pt")).save(1)
    assert list((tmp_path / "outside").iterdir()) == []


def test_no_checkpoint_goes_through_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "model_1.pt").symlink_to(tmp_path / "outside" / "dangling")
    with pytest.raises(UsageError, match=r"model_1\.pt: exists, and no emulator wrote it"):
        CheckpointWriter(recorded(tmp_path / "ck", "model_{epoch}.pt"))
    writer = CheckpointWriter(recorded(tmp_path / "fresh", "model_{epoch}.pt"))
    (tmp_path / "fresh" / "model_1.pt").symlink_to(tmp_path / "outside" / "dangling")
    with pytest.raises(IotwinError, match=r"model_1\.pt: the checkpoint cannot be written"):
        writer.save(1)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_users_file_is_spared_where_an_emulator_has_been(tmp_path: Path) -> None:
    CheckpointWriter(recorded(tmp_path / "ck", "last.pt")).save(1)
    (tmp_path / "ck" / "model_1.pt").write_text("weeks of training")
    with pytest.raises(UsageError, match=r"model_1\.pt: exists, and no emulator wrote it"):
        CheckpointWriter(recorded(tmp_path / "ck", "model_{epoch}.pt"))
    with pytest.raises(UsageError, match=r"model_1\.pt: exists, and no emulator wrote it"):
        CheckpointWriter(recorded(tmp_path / "ck", "model_{step}.pt"))
    assert (tmp_path / "ck" / "model_1.pt").read_text() == "weeks of training"


def test_removing_old_checkpoints_spares_what_a_user_put_there(tmp_path: Path) -> None:
    ck = tmp_path / "ck"
    writer = CheckpointWriter(of_model(ck, keep=1))
    writer.save(1)
    (ck / "global_epoch1_step0" / "user.txt").write_text("mine")
    (ck / "global_epoch0_step0").mkdir()
    (ck / "global_epoch0_step0" / "user.txt").write_text("mine")
    writer.save(2)
    writer.save(3)
    found = {str(path.relative_to(ck)) for path in ck.rglob("*") if path.is_file() and path.parent != ck}
    assert found == {"global_epoch0_step0/user.txt", "global_epoch1_step0/user.txt", "global_epoch3_step0/model_states-0.pt"}
    with pytest.raises(UsageError, match=r"global_epoch0_step0: exists, and no emulator wrote it"):
        CheckpointWriter(of_model(ck, keep=1))


def test_what_an_emulator_wrote_is_known_to_the_next_one_by_the_note(tmp_path: Path) -> None:
    names = ("model_{epoch}.pt", "sub/last.pt", "line\nbreak.pt")
    first = CheckpointWriter(recorded(tmp_path / "ck", *names))
    first.save(1)
    CheckpointWriter(recorded(tmp_path / "ck", *names)).save(1)  # the first has not ended: as after a kill
    note = (tmp_path / "ck" / "iotwin-emulated.txt").read_bytes().rstrip(b"\0").decode().splitlines()
    assert note[1:] == ['"model_1.pt"', '"sub/last.pt"', '"line\\nbreak.pt"']


def test_a_note_that_somebody_wrote_makes_nothing_ours(tmp_path: Path) -> None:
    (tmp_path / "victim.txt").write_text("precious")
    ck = tmp_path / "ck"
    ck.mkdir()
    note = ck / "iotwin-emulated.txt"
    note.write_text("The checkpoints in this folder are mine")
    with pytest.raises(UsageError, match="is no list of files that an emulator wrote"):
        CheckpointWriter(recorded(ck, "last.pt"))
    note.unlink()
    note.symlink_to(tmp_path / "victim.txt")
    with pytest.raises(IotwinError, match="is a link or no file"):
        CheckpointWriter(recorded(ck, "last.pt"))
    assert (tmp_path / "victim.txt").read_text() == "precious"


def test_claiming_a_folder_does_not_take_as_long_as_the_epochs_are_many(tmp_path: Path) -> None:
    with within(20):
        CheckpointWriter(recorded(tmp_path / "ck", "model_{epoch}.pt", epochs=10**12)).save(1)
