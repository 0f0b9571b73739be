"""Which files count as the data set: what the job reads for training, and not the programs and scripts that run it."""

import pytest

from iotwin.trace_store.file_kinds import FileReading, file_kind, is_named_checkpoint, kinds_by_use
from iotwin.trace_store.raw.records import TYPE_REGULAR


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/case_00000_x.npy", "dataset"),
        ("/data/bin/day_0.bin", "dataset"),
        ("/data/part-00000-of-00500", "dataset"),
        ("/home/u/project/.venv/bin/iotwin", "library"),
        ("/home/u/project/start_training.sh", "library"),
        ("/home/u/project/train.py", "library"),
        ("/home/u/project/config.yaml", "other"),
        ("/home/u/jobs/random.fio", "other"),
        ("/home/u/project/model.pt", "checkpoint"),
        ("/home/u/project/model.pth.tar", "checkpoint"),
        ("/home/u/project/model_0.chk", "checkpoint"),
        ("/out/step-12/rank-0.raw", "checkpoint"),
        ("/out/step-12.1/rank-10.json", "checkpoint"),
        ("/out/step-12.gone/rank-0.json", "checkpoint"),
        ("/out/step-12/manifest.json", "checkpoint"),
        ("/data/shard-000.tar", "dataset"),
        ("/data/rank-0.raw", "dataset"),
    ],
)
def test_kind_of_a_file_that_is_read(path, kind):
    assert file_kind(path, TYPE_REGULAR, read_bytes=59, written_bytes=0, is_log=False) == kind


@pytest.mark.parametrize("path", ["/home/u/.pyenv/libexec/pyenv-exec", "/home/u/.pyenv/version", "/opt/python/bin/python3.11"])
def test_an_interpreter_and_its_scripts_are_no_data(path):
    assert file_kind(path, TYPE_REGULAR, read_bytes=59, written_bytes=0, is_log=False) == "library"


@pytest.mark.parametrize(
    "path", ["/out/unet_1.pth", "/out/k_2.keras", "/out/__0_0.distcp", "/out/.metadata", "/out/step-3/rank-0.json"]
)
def test_a_small_state_that_is_written_is_a_checkpoint(path):
    assert file_kind(path, TYPE_REGULAR, read_bytes=0, written_bytes=52_000, is_log=False) == "checkpoint"


@pytest.mark.parametrize(
    ("read", "written", "size", "kind"),
    [(1000, 0, 1000, "dataset"), (1000, 0, 0, "temporary"), (1000, 500, 1000, "temporary"), (0, 0, 1000, "temporary")],
)
def test_shared_memory_is_the_jobs_own_unless_it_was_there_to_be_read(read, written, size, kind):
    assert file_kind("/dev/shm/data/1.npy", TYPE_REGULAR, read, written, False, size) == kind
    assert file_kind("/tmp/ompi.host/pid.7/segment-0", TYPE_REGULAR, 4096, 0, False, 0) == "temporary"  # filled through a map
    assert file_kind("/dev/shm/torch_12", TYPE_REGULAR, 1000, 0, is_log=False) == "temporary"
    assert file_kind("/memfd:[7]", TYPE_REGULAR, read, written, False, size) == "temporary"


def samples(suffix: str, times: int, first_ns: int = 100, count: int = 20) -> list[FileReading]:
    kind = file_kind(f"/d/s0{suffix}", TYPE_REGULAR, 1000, 0, False)
    return [FileReading(f"/d/s{i}{suffix}", kind, 1000, times * 1000, first_ns + i, first_ns + 50) for i in range(count)]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".pkl", ".pth", ".bin"])
def test_what_is_read_again_and_again_is_data_whatever_its_name(suffix):
    assert kinds_by_use(samples(suffix, 3)) == ["dataset"] * 20


def test_a_stored_checkpoint_is_none_of_the_data_however_often_it_is_read():
    stored = FileReading("/out/step-7/rank-0.raw", "checkpoint", 50_000, 150_000, 1, 2)
    assert kinds_by_use([stored, *samples(".npy", 3)])[0] == "checkpoint"


def test_many_files_read_once_in_the_course_of_training_are_data():
    manifest = FileReading("/d/manifest.csv", "dataset", 500, 500, 1, 2)
    assert kinds_by_use([manifest, *samples(".pt", 1)]) == ["dataset"] * 21


@pytest.mark.parametrize(
    "name", ["model.safetensors", "resume.bin", "resume.h5", "resnet50.pth", "resnet50.pth.tar", "__0_0.distcp"]
)
def test_a_state_read_once_before_the_data_is_a_checkpoint(name):
    kind = file_kind(f"/m/{name}", TYPE_REGULAR, 9000, 0, False)
    assert kinds_by_use([FileReading(f"/m/{name}", kind, 9000, 9000, 10, 20), *samples(".jpg", 3)])[0] == "checkpoint"


@pytest.mark.parametrize(("count", "until", "kind"), [(1, 20, "checkpoint"), (8, 20, "dataset"), (1, 150, "dataset")])
def test_a_few_states_opened_several_times_before_the_data_are_checkpoints(count, until, kind):
    """As safetensors maps a file of them once for each look."""
    states = [FileReading(f"/out/checkpoint-225/{i}.safetensors", "checkpoint", 9000, 27_000, 10, until) for i in range(count)]
    assert kinds_by_use([*states, *samples(".jpg", 3)])[:count] == [kind] * count


@pytest.mark.parametrize(
    ("path", "is_checkpoint"), [("/out/ckpt_175.pt", True), ("/out/.metadata", True), ("/tmp/9gbnrifs", False)]
)
def test_what_is_removed_without_being_opened_is_what_its_name_says(path, is_checkpoint):
    assert is_named_checkpoint(path) == is_checkpoint


def test_a_state_alone_is_what_its_name_says():
    for name, kind in (("resnet50.pth", "checkpoint"), ("tokens.bin", "dataset")):
        assert kinds_by_use([FileReading(f"/m/{name}", kind, 9000, 9000, 10, 20)]) == [kind]


@pytest.mark.parametrize(("count", "size", "kind"), [(8, 1 << 17, "dataset"), (7, 1 << 18, "other"), (8, (1 << 17) - 1, "other")])
def test_many_text_files_that_bring_much_are_a_corpus(count, size, kind):
    """Each is read twice, half of `size` a time."""
    documents = [FileReading(f"/corpus/{i}.txt", "other", size // 2, size, i, 50 + i) for i in range(count)]
    settings = [FileReading(f"/job/{i}.yaml", "other", 900, 900, i, i) for i in range(20)]
    assert kinds_by_use([*documents, *settings]) == [kind] * count + ["other"] * 20


@pytest.mark.parametrize(("count", "times", "kind"), [(16, 2, "dataset"), (15, 2, "other"), (16, 1, "other")])
def test_many_small_texts_that_are_read_again_are_labels(count, times, kind):
    labels = [FileReading(f"/labels/{i}.txt", "other", 60, 60 * times, i, 50 + i) for i in range(count)]
    assert kinds_by_use([*labels, *samples(".jpg", times)])[:count] == [kind] * count


def test_a_state_read_before_a_corpus_is_a_checkpoint():
    documents = [FileReading(f"/corpus/{i}.txt", "other", 1 << 18, 1 << 19, 100 + i, 200 + i) for i in range(20)]
    assert kinds_by_use([FileReading("/m/base.bin", "dataset", 9000, 9000, 10, 20), *documents])[0] == "checkpoint"


@pytest.mark.parametrize(
    "folder",
    [
        "/usr/share/zoneinfo",
        "/usr/share/doc/python3",
        "/opt/conda/conda-meta",
        "/opt/conda/lib/python3.11/lib2to3",
        "/job/.venv/lib/python3.11/site-packages/torch-2.dist-info",
        "/job/.venv/lib64/python3.11/site-packages/nltk/corpora",
    ],
)
def test_texts_of_libraries_are_no_corpus(folder):
    paths = [f"{folder}/{i}.txt" for i in range(20)]
    files = [FileReading(path, file_kind(path, TYPE_REGULAR, 1 << 19, 0, False), 1 << 19, 1 << 19, 1, 2) for path in paths]
    assert kinds_by_use(files) == ["library"] * 20
