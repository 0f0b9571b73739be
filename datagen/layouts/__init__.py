"""Layouts describe the files of data sets: names, shapes, element types and sizes.

datagen/generate.py writes the files of a layout; benchmark/ and workloads/ read them.
"""

from iotwin.datagen.layouts.base import LARGEST_FILE_BYTES, Layout, PlannedPiece, npy_header
from iotwin.datagen.layouts.bert import BertLayout
from iotwin.datagen.layouts.dlrm import DlrmDaysLayout, DlrmLayout
from iotwin.datagen.layouts.formats import FormatLayout
from iotwin.datagen.layouts.imagenet import ImagenetLayout
from iotwin.datagen.layouts.recorded import RecordedLayout
from iotwin.datagen.layouts.unet3d import Case, Unet3dLayout

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
    "npy_header",
]
