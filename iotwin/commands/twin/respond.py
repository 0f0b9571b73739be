"""``iotwin twin respond``: run the twin, and the job, under changed storage, and compare the times of their epochs."""

from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least

_NEAR = 0.05  # relative difference of times up to which the twin takes as long as the job


class TwinRespondCommand(Command):
    name = "respond"
    help = "run the twin, and the job, under changed storage: reads capped, page cache cold or small; needs root"
    epilog = """examples:
  iotwin twin respond twin -o response --change cold --change read=25MB --job python train.py
  iotwin twin respond twin -o response --change cache=64MiB --change requests=200"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR", help="the directory that iotwin twin wrote")
        parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="directory to write")
        parser.add_argument(
            "--change",
            action="append",
            metavar="CHANGE",
            help="cold, read=BYTES a second, requests=N a second, cache=SIZE, or several joined by commas; repeatable",
        )
        parser.add_argument(
            "--runs",
            type=at_least(1),
            default=1,
            metavar="N",
            help="runs under each change, of which medians are reported (default 1)",
        )
        parser.add_argument("--force", action="store_true", help="replace an earlier response in OUT")
        parser.add_argument(
            "--job",
            nargs=REMAINDER,
            default=[],
            metavar="COMMAND",
            help="the job's command, to the end of the line; without it the twin runs alone",
        )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.loops.respond.storage_response import DEFAULT_CHANGES, parse_change, respond

        changes = [parse_change(text) for text in args.change or DEFAULT_CHANGES]
        document = respond(args.directory, args.output, changes, args.runs, args.job, args.force)
        return Outcome({"action": "respond", **document})

    def show(self, document: dict[str, Any]) -> None:
        from iotwin.common.terminal import print_table
        from iotwin.common.units import format_duration
        from iotwin.tracesim.verdict.equivalence_sentences import lines_of_caveats

        def seconds(side: dict[str, Any] | None) -> str:
            return "" if side is None else format_duration(side["seconds"] * 1e9)

        def share(ratio: float | None) -> str:
            return "" if ratio is None else f"{ratio:.2f}"

        what = "an epoch" if document["changes"][0]["of"] == "epoch" else "from the first read to the last"
        rows = [
            (row["change"], seconds(row.get("job")), seconds(row["twin"]), share(row["ratio"]), share(row["first_epoch_ratio"]))
            for row in document["changes"]
        ]
        print_table((what, "job", "twin", "twin / job", "first epoch"), rows)
        for row in document["changes"]:
            for text in row["not_in_force"]:
                print(f"{row['change']} was not in force: {text}")
        caveats = _caveats(document)
        for line in lines_of_caveats(caveats):
            print(line)
        print(_conclusion(document, any("crowded" in caveat for caveat in caveats)))


def _caveats(document: dict[str, Any]) -> list[str]:
    """Return the document's caveats, then each caveat of its rows once, preceded by the names of the changes it concerns."""
    rows: dict[str, list[str]] = {}
    for row in document["changes"]:
        for caveat in row["caveats"]:
            rows.setdefault(caveat, []).append(row["change"])
    return [*document["caveats"], *(f"{', '.join(names)}: {caveat}" for caveat, names in rows.items())]


def _conclusion(document: dict[str, Any], crowded: bool) -> str:
    """Return a sentence on how far the twin's times are from the job's; `crowded`: other work took processors during a run."""
    compared = [row for row in document["changes"] if row["ratio"] is not None]
    if not compared:
        reason = "the job did not run" if document["job"] is None else "no change was in force"
        return f"conclusion: the twin's response was not compared with the job's: {reason}"
    furthest = max(compared, key=lambda row: max(row["ratio"], 1 / max(row["ratio"], 1e-9)))
    near = sum(abs(row["ratio"] - 1) <= _NEAR for row in compared)
    text = f"conclusion: the twin takes as long as the job, within {_NEAR:.0%}, on {near} of {len(compared)} kinds of storage; "
    text += f"furthest is {furthest['change']}: {furthest['ratio']:.2f} times as long"
    return f"{text}; the machine was crowded, so run it again on an idle machine" if crowded else text
