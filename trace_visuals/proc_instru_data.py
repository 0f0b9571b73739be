"""The paper artifact's script of this name, with its options: draw the parts of the steps of instrumented runs.

python trace_visuals/proc_instru_data.py DIR... WORKLOAD [-o DIR] [-t TITLE] [-l] [-f] [-pb] [-pt] [-pl] [-bh]
"""

import argparse
import sys
from pathlib import Path

from iotwin.common.files import make_folder, rename, scratch_folder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.workloads import NAMES
from iotwin.trace_visuals.steps.plot_steps import plot_steps

# The suffix of the pictures of `plot_steps` that each option selects.
_PICTURES = {
    "breakdown": "breakdown.png",
    "throughputs": "throughputs.png",
    "latencies": "latencies.png",
    "big_histo": "compute_times.png",
}


def draw(directories: list[Path], workload: str, output: Path, wanted: list[str], title: str | None) -> list[Path]:
    """Draw the wanted pictures of one workload and its tables into `output`; return the pictures.

    Raises IotwinError when no run of the workload was found.
    """
    make_folder(output)
    pictures = []
    with scratch_folder(output) as folder:
        found = plot_steps(directories, folder, title)
        for kind in wanted:
            picture = folder / f"{workload}_{_PICTURES[kind]}"
            if picture.exists():
                pictures.append(output / picture.name)
                rename(picture, pictures[-1])
        for name in ("steps.csv", "throughputs.csv", "fits.json", "regressions.json"):
            rename(folder / name, output / name)
        models = output / "computation_times"
        make_folder(models, below=output)
        for model in (folder / models.name).iterdir():
            rename(model, models / model.name)
    if not pictures:
        raise IotwinError(f"none of the {found['runs']} runs is of {workload}, or none shows what was asked for")
    return pictures


def main() -> int:
    """Draw the pictures that the command line requests, and return the exit status."""
    parser = argparse.ArgumentParser(description="Draw step breakdowns; see also: iotwin plot steps --help")
    parser.add_argument("data_dirs", nargs="+", type=Path, help="directories of instrumented runs")
    parser.add_argument("workload", choices=list(NAMES), help="whose runs to draw")
    parser.add_argument("-o", "--output-dir", type=Path, help="default: the one directory, or data_step_breakdown/WORKLOAD")
    parser.add_argument("-t", "--title", help="words over each picture, after the workload")
    parser.add_argument("-l", "--legend", action="store_true", help="of no effect: every picture has its legend")
    parser.add_argument("-f", "--fit", action="store_true", help="of no effect: distributions are always fitted, see fits.json")
    parser.add_argument("-pb", "--breakdown", action="store_true", help="draw the breakdown of a step")
    parser.add_argument("-pt", "--throughputs", action="store_true", help="draw the throughputs")
    parser.add_argument("-pl", "--latencies", action="store_true", help="draw the latencies")
    parser.add_argument("-bh", "--big-histo", action="store_true", help="draw all distributions of compute time with their fits")
    args = parser.parse_args()
    wanted = [kind for kind in _PICTURES if getattr(args, kind)]
    workload = NAMES[args.workload]
    alone = args.data_dirs[0] if len(args.data_dirs) == 1 else Path("data_step_breakdown") / workload
    try:
        if not wanted:
            raise UsageError("no picture is asked for; add -pb, -pt, -pl or -bh")
        pictures = draw(args.data_dirs, workload, args.output_dir or alone, wanted, args.title)
    except IotwinError as error:
        print(f"proc_instru_data.py: {error}", file=sys.stderr)
        return error.exit_status
    print("\n".join(map(str, pictures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
