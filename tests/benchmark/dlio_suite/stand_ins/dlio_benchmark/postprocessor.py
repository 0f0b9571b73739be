"""DLIO's postprocessor by this project's."""

from pathlib import Path

from iotwin.benchmark.emulator.results.postprocess import overall


class DLIOPostProcessor:
    def __init__(self, args):
        self._args = args

    def process_loading_and_processing_times(self):
        args = self._args
        self.overall_stats = overall(Path(args.output_folder), args.num_proc, args.epochs, args.record_size)
