"""Samples that no parameters describe are refused in one line: parts of files, several files, and batches of unknown size."""

import pytest

from iotwin.benchmark.fit.parameters.parameters import fit_parameters
from iotwin.common.errors import IotwinError
from tests.benchmark.fit.made_jobs import chunks_and_labels, crops, fed, images_opened_three_times, read_by_threads
from tests.benchmark.fit.made_training import Training
from tests.benchmark.loader_job import LoaderJob
from tests.benchmark.made_trace import Made
from tests.processes import call


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (chunks_and_labels, "the samples are no files that are read whole"),
        (crops, "the samples are no files that are read whole"),
        (lambda folder: LoaderJob(mask_bytes=9_000, epochs=3).trace(folder / "t"), "the samples are no single files"),
        (lambda folder: fed(folder, 60, 20), "the samples are no single files"),  # 40 batches for which nothing is read
        (lambda folder: read_by_threads(folder, 8), "the trace does not show when a rank took which batch"),
    ],
)
def test_samples_that_are_no_single_whole_files_have_no_parameters(tmp_path, job, reason):
    trace = job(tmp_path)
    with pytest.raises(IotwinError) as error:
        fit_parameters(trace)
    assert str(error.value).startswith(f"{trace.path}: {reason}") and "\n" not in str(error.value)
    refused = call("fit", trace.path, "--parameters", "-o", tmp_path / "job.yaml")
    assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1 and not (tmp_path / "job.yaml").exists()


def test_files_read_until_nothing_comes_are_so_described(tmp_path):
    """Each of 16 files of 3000 bytes is read to its end, and once more, in each of three epochs."""
    made, now = Made(), 0.0
    made.process(1000, 1, "rank")
    files = [made.file(f"/d/{i:02}.bin", size=3_000) for i in range(16)]
    for file in files * 3:
        now = made.call(made.call(now, 1000, "openat", file), 1000, "read", file, 0, 3_000)
        now = made.call(now, 1000, "read", file, 3_000)
        made.rows[-1] = (*made.rows[-1][:9], 0, 0, 0)  # brings nothing
        now = 20 + made.call(now, 1000, "close", file)
    reader = fit_parameters(made.trace(tmp_path / "t")).config.twin.reader
    assert reader.read_sizes == [3_000, 0]


def test_a_file_that_is_opened_three_times_is_one_sample(tmp_path):
    config = fit_parameters(images_opened_three_times(tmp_path)).config
    assert (config.dataset.num_files_train, config.train.epochs, config.reader.batch_size) == (24, 3, 1)


def test_files_of_all_ranks_are_samples(tmp_path):
    config = fit_parameters(Training(2, False).trace(tmp_path)).config
    assert (len(config.twin.train_files), len(config.twin.eval_files)) == (48, 16)
