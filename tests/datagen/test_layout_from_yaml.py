"""The dataset section of a DLIO workload: generation reads it as the emulator does."""

import pytest

from iotwin.common.errors import UsageError
from iotwin.datagen.layout_from_yaml import layout_of, read_config, train_files
from iotwin.workload_yaml import load


def written(directory, *lines):
    path = directory / "workload.yaml"
    path.write_text("\n".join(["dataset:", "  format: npz", *(f"  {line}" for line in lines)]), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["record_length_bytes: 1e3"], {"record_bytes": 1000}),
        (["num_files_train: 1e1"], {"samples": 10}),
        (["num_files_train: 010"], {"samples": 10}),  # YAML 1.1's octal, 8
        (["num_files_train: 1_0"], {"samples": 10}),
        (["file_prefix: no"], {"prefix": "no"}),  # YAML 1.1's false
        (["file_prefix: 12:30"], {"prefix": "12:30"}),  # YAML 1.1's 750
        (["keep_files: yes"], {}),
        (["keep_files: off"], {}),
        (["num_files_train: null"], {"samples": 8}),
        (["record_length: 5000", "record_length_stdev: 100"], {"record_bytes": 5000, "record_stdev_bytes": 100}),
        (["interleave: true", "write_threads: 4"], {}),  # what only the emulator or DLIO's fork reads
    ],
)
def test_generation_reads_a_section_as_the_emulator_does(tmp_path, lines, expected):
    path = written(tmp_path, *lines)
    layout, samples = read_config(path)
    dataset = load(path).dataset
    assert (layout, samples) == (layout_of(dataset), train_files(dataset) * dataset.num_samples_per_file)
    for name, value in expected.items():
        assert (samples if name == "samples" else getattr(layout, name)) == value


def test_columns_of_parquet_may_be_names_alone(tmp_path):
    path = written(tmp_path, "format: parquet", "parquet: {columns: [a, {name: b, size: 3}]}")
    path.write_text(path.read_text(encoding="utf-8").replace("  format: npz\n", ""), encoding="utf-8")
    layout, _ = read_config(path)
    assert layout.columns == (("a", "float32", 1), ("b", "float32", 3)) and layout.record_dims == (16,)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num_files_train: yes", "dataset.num_files_train: expected int"),
        ("num_file_train: 8", r"dataset.num_file_train: unknown key \(did you mean 'num_files_train'\?\)"),
        ("record_length_bytes: 3MB", "without a unit"),
        ("format: npy", r"workload.yaml:3: is not YAML: the key 'format' is given twice"),
        ("num_files_eval: 2\n  eval_num_samples_per_file: 3", "all have num_samples_per_file samples"),
        ("a: [" * 70, "nested more than 64 deep"),
    ],
)
def test_what_is_wrong_is_told_with_its_key_in_one_line(tmp_path, line, message):
    with pytest.raises(UsageError, match=message) as caught:
        read_config(written(tmp_path, line))
    assert "\n" not in str(caught.value)
