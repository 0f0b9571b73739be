"""``iotwin detrain discover``: find the loops of a training script, the data call and the weight update."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least
from iotwin.commands.detrain.script_arguments import add_script_arguments
from iotwin.common.units import counted


class DetrainDiscoverCommand(Command):
    name = "discover"
    help = "find the epoch loop, the batch loop, the data call and the weight update of a training script"
    epilog = """examples:
  iotwin detrain discover train.py -o inst.json
  iotwin detrain discover train.py --confirm -- --epochs 2"""

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument("script", type=Path, metavar="SCRIPT", help="training script; it is read, and run only by --confirm")
        parser.add_argument(
            "--confirm",
            action="store_true",
            help="run the script until the batch loop has iterated five times, and check the lines",
        )
        parser.add_argument(
            "--timeout", type=at_least(1, float), default=60.0, metavar="S", help="seconds that --confirm may take (default 60)"
        )
        parser.add_argument("--perturb", type=at_least(1), metavar="N", help="of no effect: the source shows what the loader is")
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result, as inst.json")
        parser.add_argument("--emit-patch", action="store_true", help="print a patch that puts marks into the loops")
        add_script_arguments(parser)

    def run(self, args: Namespace) -> Outcome:
        from iotwin.common.errors import IotwinError
        from iotwin.common.progress import note
        from iotwin.workloads.detrain.discover import analyse, no_loop
        from iotwin.workloads.detrain.instrumentation import write_instrumentation

        if args.perturb is not None:
            note("--perturb is of no effect: the source shows what the loader is, so no run on other data is needed")
        found = analyse(args.script)
        if found.kind == "NONE" and not args.json:
            raise IotwinError(no_loop(found))
        if args.confirm and found.kind != "NONE":
            from iotwin.workloads.detrain.confirm import confirm

            found = confirm(found, args.arguments, args.timeout)
        if args.output is not None:
            write_instrumentation(args.output, found)
        document = _plain(found)
        if args.emit_patch:
            from iotwin.workloads.detrain.rewrite import marks_patch

            document["patch"] = marks_patch(found)
        return Outcome(document, 1 if found.kind == "NONE" else 0)

    def show(self, document: dict[str, Any]) -> None:
        if "patch" in document:
            print(document["patch"], end="")
        else:
            show_instrumentation(document)


def _plain(found: Any) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(found)
    return document


def show_instrumentation(document: dict[str, Any]) -> None:
    """Print inst.json as a small table, its confidence and its reasons."""
    from iotwin.common.terminal import print_table

    rows = [_row(name, document[key]) for name, key in _ROWS if document[key] is not None]
    print_table(("", "file", "line", "code"), rows)
    loader = document["loader"]
    if loader is not None:
        print(f"loader: {loader['name']}, {'lives longer than an epoch' if loader['persistent'] else 'made anew for each epoch'}")
    if document["wrapper"] is not None:
        print(f"wrapper: {document['wrapper']['module']}.{document['wrapper']['function']}")
    confirmed = {None: "", True: f", confirmed in {counted(document['iterations'], 'iteration')}", False: ", not confirmed"}
    print(f"{document['kind']}, confidence {document['confidence']:.2f}{confirmed[document['confirmed']]}")
    for reason in document["reasons"]:
        print(f"* {reason}")


_ROWS = (("epoch loop", "epoch"), ("batch loop", "batch"), ("data call", "data"), ("weight update", "update"))


def _row(name: str, line: dict[str, Any]) -> list[Any]:
    return [name, Path(line["file"]).name, line["line"], line.get("call", "")]
