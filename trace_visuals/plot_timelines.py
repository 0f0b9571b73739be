"""The paper artifact's script of this name, with its options: draw the timelines of one trace at several zooms.

python trace_visuals/plot_timelines.py DATA_DIR WORKLOAD NAME [-po] [-a] [-s] [-o DIR]
"""

import argparse
import sys
from pathlib import Path

from iotwin.common.files import make_folder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.progress import note
from iotwin.common.workloads import NAMES
from iotwin.trace_visuals.timeline.timeline_figure import Form, plot_timeline

_FEW: dict[str, str | None] = {"whole": None, "epoch": "epoch:1", "block": "block:1"}
_ALL = _FEW | {
    "init": "init",
    "first_30s": "30s",
    "first_5min": "5min",
    "eval": "eval:1",
    "checkpoint": "checkpoint:1",
    "last_2min": "last:2min",
    "last_5s": "last:5s",
}


def draw_all(trace: Path, directory: Path, zooms: dict[str, str | None], form: Form) -> list[Path]:
    """Draw a picture for each zoom that the trace has data for, and one legend, into `directory`; return the pictures' paths.

    Raises IotwinError if the trace cannot be read.
    """
    make_folder(directory)
    drawn: list[Path] = []
    for name, zoom in zooms.items():
        legend = None if drawn else directory / "legend.png"
        try:
            plot_timeline([trace], directory / f"{name}.png", zoom, form=form, legend=legend)
        except UsageError as error:
            note(f"{name} is left out: {error}")
        else:
            drawn.append(directory / f"{name}.png")
    return drawn


def main() -> int:
    """Draw the timelines that the command line requests, and return the exit status."""
    parser = argparse.ArgumentParser(description="Draw timelines of a trace; see also: iotwin plot timeline --help")
    parser.add_argument("data_dir", type=Path, help="the trace, as preprocess_traces.py or iotwin trace wrote it")
    parser.add_argument("workload", choices=list(NAMES), help="what was recorded")
    parser.add_argument("name", help="name of the pictures' directory")
    parser.add_argument("-po", "--paper-only", action="store_true", help="the form for papers: no titles, no CPU row")
    parser.add_argument("-a", "--all", action="store_true", help="all zooms, not just the whole and the first epoch or block")
    parser.add_argument("-s", "--short", action="store_true", help="as wide as one column of text")
    parser.add_argument("-o", "--output-dir", type=Path, default=Path("plots"), help="where NAME is made (default plots)")
    args = parser.parse_args()
    form = Form(short=args.short, paper=args.paper_only, legend=False)
    try:
        if args.name in ("", ".", "..") or "/" in args.name:
            raise UsageError(f"'{args.name}' is no name for a directory; use -o to choose where it is made")
        pictures = draw_all(args.data_dir, args.output_dir / args.name, _ALL if args.all else _FEW, form)
    except IotwinError as error:
        print(f"plot_timelines.py: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(map(str, pictures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
