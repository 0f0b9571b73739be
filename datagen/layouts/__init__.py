"""What the data sets of the workloads look like: file names, shapes, dtypes, bytes.

A layout only describes; datagen/generate.py writes what it describes, benchmark/ and workloads/ read it.
"""

from datagen.layouts.base import LARGEST_FILE_BYTES, Layout, PlannedPiece, element_type, npy_header
from datagen.layouts.bert import BertLayout
from datagen.layouts.dlrm import DlrmDaysLayout, DlrmLayout
from datagen.layouts.formats import FormatLayout
from datagen.layouts.imagenet import ImagenetLayout
from datagen.layouts.recorded import RecordedLayout
from datagen.layouts.unet3d import Case, Unet3dLayout

__all__ = [
    "LARGEST_FILE_BYTES",
    "BertLayout",
    "Case",
    "DlrmDaysLayout",
    "DlrmLayout",
    "FormatLayout",
    "ImagenetLayout",
    "Layout",
    "PlannedPiece",
    "RecordedLayout",
    "Unet3dLayout",
    "element_type",
    "npy_header",
]
