"""Print the results of ``iotwin emulate``: a run's figures, the table of a what-if question, or a workload's values."""

from typing import Any

from iotwin.common.units import counted, format_duration, format_size


def print_values(values: list[dict[str, Any]]) -> None:
    """Print every key, its value and its origin. If there is only one key, print its value alone, for scripts."""
    if len(values) == 1:
        print(values[0]["value"])
        return
    width = max(len(row["key"]) for row in values)
    for row in values:
        print(f"{row['key']:{width}}  {row['value']!s:32}  {row['origin']}")


def print_run(document: dict[str, Any]) -> None:
    """Print the figures of a run with their units and, if known, 95 % confidence intervals."""
    metric, own = document["metric"], document["iotwin"]
    lines: dict[str, str] = {}
    if own["train"] is not None:
        lines |= _training(metric, own)
    if own["checkpoint_files"]:
        rate, least = metric["save_checkpoint_io_mean_GB_per_second"], metric["save_checkpoint_io_min_GB_per_second"]
        lines["checkpoints"] = f"{format_size(own['bytes_written'])} at {rate:.3g} GiB/s a rank (slowest {least:.3g})"
    if "load_checkpoint_io_mean_GB_per_second" in metric:
        lines["checkpoints read"] = f"{metric['load_checkpoint_io_mean_GB_per_second']:.3g} GiB/s a rank"
    if "recorded" in own:
        lines |= _replayed(own)
    if own["stopped_early"]:
        lines["stopped"] = f"after {own['elapsed_s']:.1f} s, as asked"
    lines["results"] = document["output"]
    for name, value in lines.items():
        print(f"{name:24} {value}")


def _replayed(own: dict[str, Any]) -> dict[str, str]:
    error, waits = own["recorded"]["timing_error"], own["recorded"]["waits_given_up"]
    lines = {"replayed": f"{counted(error['calls'], 'call')} in {own['elapsed_s']:.1f} s"}
    lines["read, written"] = f"{format_size(own['bytes_read'])}, {format_size(own['bytes_written'])}"
    if (waited := own["recorded"]["data_wait_s"]) is not None:
        lines["waited for data"] = f"{format_duration(waited * 1e9)} ({waited / own['elapsed_s']:.0%} of the run)"
    if error["calls"]:
        median, p99 = format_duration(error["median_s"] * 1e9), format_duration(error["p99_s"] * 1e9)
        lines["begun late"] = f"median below {median}, p99 below {p99} a call"
    if waits:
        lines["waits given up"] = f"{waits}: threads waited for one another, as they did not in the job"
    return lines


def _training(metric: dict[str, Any], own: dict[str, Any]) -> dict[str, str]:
    waits, estimates = own["train"]["data_wait_s"], own["estimates"]["train"]
    lines = {"accelerator utilisation": "unknown: one step per epoch"}
    if (utilisation := metric["train_au_mean_percentage"]) is not None:
        reached = "reached" if metric["train_au_meet_expectation"] == "success" else "not reached"
        over_all, without = estimates["au_percentage"], estimates["au_without_overhead_percentage"]["value"]
        lines["accelerator utilisation"] = f"{utilisation:.1f} % in the mean of epochs (goal {reached})"
        lines["over all steps"] = (
            f"{over_all['value']:.1f} %{_interval(over_all)}, {without:.1f} % without the emulator's own overhead"
        )
    throughput = metric["train_throughput_mean_samples_per_second"]
    lines["throughput"] = f"{throughput:.2f} samples/s{_interval(estimates['samples_per_second'])}"
    lines["read"] = f"{format_size(own['bytes_read'])}, in training {metric['train_io_mean_MB_per_second']:.1f} MiB/s"
    if own["page_cache_hit_ratio"] is not None:
        lines["read"] += f", {100 * own['page_cache_hit_ratio']:.0f} % from the page cache"
    lines["wait for data"] = f"median {format_duration(waits['median'] * 1e9)}, p99 {format_duration(waits['p99'] * 1e9)} a step"
    return lines


def _interval(estimate: dict[str, float | None]) -> str:
    low, high = estimate["low"], estimate["high"]
    return "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"


def print_what_if_latex(document: dict[str, Any]) -> None:
    """Print the runs of a what-if question as a table for LaTeX; columns that are empty in all rows are left out."""
    from iotwin.loops.latex_table import latex_table

    rows = document["runs"]
    columns = [name for name in rows[0] if name != "value" and any(row[name] is not None for row in rows)]
    table = [["as it is" if row["value"] is None else str(row["value"]), *(row[name] for name in columns)] for row in rows]
    print(latex_table([document["what_if"], *columns], table), end="")


def print_what_if(document: dict[str, Any]) -> None:
    """Print a row for each run of a what-if question."""
    if any(row["waited_s"] is not None for row in document["runs"]):
        _print_replays(document)
        return
    decides = any(row["checkpoint_interval"] is not None for row in document["runs"])
    names = f"{document['what_if']:>24} {'AU %':>8} {'samples/s':>12} {'times':>7} {'read MiB/s':>12} {'wait a step':>12}"
    recomputes = any(row["au_without_recompute_percentage"] != row["au_percentage"] for row in document["runs"])
    print(names + f" {'AU first %':>11}" * recomputes + f" {'checkpoint every':>17}" * decides)
    for row in document["runs"]:
        value = "as it is" if row["value"] is None else row["value"]
        wait = "" if row["data_wait_s"] is None else format_duration(row["data_wait_s"] * 1e9)
        columns = (
            ("au_percentage", 8, ".1f"),
            ("samples_per_second", 12, ".2f"),
            ("speed_up", 7, ".2f"),
            ("read_MB_per_second", 12, ".1f"),
        )
        cells = "".join(f" {'' if row[key] is None else format(row[key], form):>{width}}" for key, width, form in columns)
        first = row["au_without_recompute_percentage"]
        useful = f" {'' if first is None else format(first, '.1f'):>11}" * recomputes
        every = "" if row["checkpoint_interval"] is None else f" {row['checkpoint_interval']:>11} steps"
        print(f"{value:>24}{cells} {wait:>12}{useful}{every}{_noise(row)}")
    _print_end(document)


def _print_replays(document: dict[str, Any]) -> None:
    """Print a row for each run of a twin that replays a recording: its value, seconds, speed-up and wait for data."""
    recomputes = any(row["au_without_recompute_percentage"] != row["au_percentage"] for row in document["runs"])
    columns = (
        ("samples_per_second", "samples/s", 11),
        ("au_percentage", "AU %", 7),
        ("au_without_recompute_percentage", "AU first %", 11),
        ("read_MB_per_second", "read MiB/s", 11),
    )
    names = "".join(f" {name:>{width}}" for _, name, width in columns) * recomputes
    print(f"{document['what_if']:>24} {'seconds':>10} {'times':>7} {'waited for data':>16}{names}")
    for row in document["runs"]:
        value = "as it is" if row["value"] is None else row["value"]
        times = "" if row["speed_up"] is None else f"{row['speed_up']:.2f}"
        waited = format_duration(row["waited_s"] * 1e9)
        cells = "".join(f" {'' if row[key] is None else format(row[key], '.4g'):>{width}}" for key, _, width in columns)
        print(f"{value:>24} {row['elapsed_s']:>10.1f} {times:>7} {waited:>16}{cells * recomputes}{_noise(row)}")
    _print_end(document)


def _noise(row: dict[str, Any]) -> str:
    """Return the interval of a row's `times`, and whether the difference is within noise; empty for a single run."""
    if row["value"] is None or row["within_noise"] is None:
        return ""
    return f"  [{row['low']:.2f}, {row['high']:.2f}]" + (" within noise" if row["within_noise"] else "")


def _print_end(document: dict[str, Any]) -> None:
    """Print what the answer assumes, and where the results are."""
    for text in document.get("assumptions", ()):
        print(f"{'assumed':24} {text}")
    print(f"{'results':24} {document['output']}")
