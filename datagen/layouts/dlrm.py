"""Layouts of the Criteo Terabyte data set for DLRM: after the workload's preprocessing, and in files by day before that."""

from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import UsageError, nearest
from iotwin.datagen.layouts.base import PlannedPiece


class DlrmLayout(msgspec.Struct, frozen=True):
    """Criteo Terabyte after the workload's preprocessing: one row of 40 little-endian int32 per sample, label first.

    `terabyte_processed_train.bin` holds the training samples and `terabyte_processed_test.bin` one test sample for every 47 of
    them, as in the original. `day_fea_count.npz` holds the number of categories of each categorical feature.
    """

    workload: ClassVar[str] = "dlrm"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = True
    DTYPE: ClassVar[str] = "<i4"
    COLUMNS: ClassVar[int] = 40  # the label, DENSE features, and one categorical feature for each of CATEGORIES
    DENSE: ClassVar[int] = 13
    # Number of values of each categorical feature of Criteo Terabyte, to which the workload applies a modulus.
    CATEGORIES: ClassVar[tuple[int, ...]] = (
        227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10,
        2209, 11938, 155, 4, 976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36,
    )  # fmt: skip
    SAMPLE_BYTES: ClassVar[int] = 4 * 40
    TRAIN_NAME: ClassVar[str] = "terabyte_processed_train.bin"
    TEST_NAME: ClassVar[str] = "terabyte_processed_test.bin"
    COUNTS_NAME: ClassVar[str] = "day_fea_count.npz"
    COUNTS_BYTES: ClassVar[int] = 474  # size of an .npz with one array of 26 int64
    UNIT_SAMPLES: ClassVar[int] = 1 << 18  # 40 MiB; several workers write one large file in units

    @staticmethod
    def test_samples(samples: int) -> int:
        """Return the number of test samples for `samples` training samples."""
        return -(-samples // 47)

    @classmethod
    def rows_piece(cls, name: str, rows: int, unit: int) -> PlannedPiece:
        """Return the piece at index `unit` of the file `name`, which has `rows` rows in pieces of UNIT_SAMPLES."""
        first = unit * cls.UNIT_SAMPLES
        count = min(cls.UNIT_SAMPLES, rows - first)
        return PlannedPiece(name, count * cls.SAMPLE_BYTES, first * cls.SAMPLE_BYTES, rows * cls.SAMPLE_BYTES)

    @classmethod
    def piece_bytes(cls, rows: int) -> NDArray[np.int64]:
        """Return the sizes in bytes of the pieces of a file with `rows` rows."""
        firsts = np.arange(0, rows, cls.UNIT_SAMPLES, dtype=np.int64)
        return np.minimum(rows - firsts, cls.UNIT_SAMPLES) * cls.SAMPLE_BYTES

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the piece of unit `unit`. The pieces of the training file come first, then the test file's, then the counts."""
        for name, rows in ((self.TRAIN_NAME, samples), (self.TEST_NAME, self.test_samples(samples))):
            units = -(-rows // self.UNIT_SAMPLES)
            if unit < units:
                return [self.rows_piece(name, rows, unit)]
            unit -= units
        return [PlannedPiece(self.COUNTS_NAME, self.COUNTS_BYTES)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        files = self.piece_bytes(samples), self.piece_bytes(self.test_samples(samples))
        return np.concatenate([*files, np.array([self.COUNTS_BYTES])])

    def file_count(self, samples: int) -> int:
        """Return the number of files: training, test and counts."""
        return 3

    def samples_within(self, size_bytes: int, seed: int) -> int:
        rows = (size_bytes - self.COUNTS_BYTES) // self.SAMPLE_BYTES
        return max(0, rows * 47 // 48)


class DlrmDaysLayout(msgspec.Struct, frozen=True):
    """Criteo Terabyte by days, before or halfway through the workload's preprocessing. All days have about equally many samples.

    * form `text`: files `day_N` as downloaded, with tab-separated lines: label, 13 numbers, 26 categories as 8 hex digits.
    * form `npz`: files `day_N_reordered.npz` with X_int (n, 13), X_cat (n, 26) and y (n,), all int32; `day_day_count.npz` with
      the number of samples of each day; and `day_fea_count.npz`. data_utils.py of facebookresearch/dlrm writes the same files
      for its memory-mapped loader, which tests on the last day.
    """

    form: str = "text"

    workload: ClassVar[str] = "dlrm"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = False
    FORMS: ClassVar[tuple[str, ...]] = ("text", "npz")
    DAYS: ClassVar[int] = 24
    LINE_BYTES: ClassVar[int] = 284  # mean size of a generated line
    DAY_COUNTS_NAME: ClassVar[str] = "day_day_count.npz"

    def __post_init__(self) -> None:
        """Raise UsageError if the form is unknown."""
        if self.form not in self.FORMS:
            raise UsageError(
                f"unknown form '{self.form}'{nearest(self.form, ['binary', 'text', 'npz'])}; known: binary, text, npz"
            )

    def day_samples(self, samples: int) -> NDArray[np.int64]:
        """Return the number of samples of each day. There are 24 days, or as many as samples if fewer."""
        days = min(self.DAYS, samples)
        return np.asarray(samples // days + (np.arange(days) < samples % days), np.int64)

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the file of day `unit`. The units after the last day are the files of counts."""
        days = self.day_samples(samples)
        if unit < len(days):
            name = f"day_{unit}" if self.form == "text" else f"day_{unit}_reordered.npz"
            return [PlannedPiece(name, int(self.unit_bytes(samples, seed)[unit]))]
        return [PlannedPiece((self.DAY_COUNTS_NAME, DlrmLayout.COUNTS_NAME)[unit - len(days)], DlrmLayout.COUNTS_BYTES)]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the approximate size of each unit in bytes: the days, then the files of counts."""
        days = self.day_samples(samples)
        if self.form == "text":
            return days * self.LINE_BYTES
        return np.concatenate([days * DlrmLayout.SAMPLE_BYTES + 800, np.full(2, DlrmLayout.COUNTS_BYTES)])

    def file_count(self, samples: int) -> int:
        return len(self.unit_bytes(samples, 0))

    def samples_within(self, size_bytes: int, seed: int) -> int:
        if self.form == "text":
            return size_bytes // self.LINE_BYTES
        return max(0, (size_bytes - 800 * self.DAYS - 2 * DlrmLayout.COUNTS_BYTES) // DlrmLayout.SAMPLE_BYTES)
