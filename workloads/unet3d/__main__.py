"""``python -m workloads.unet3d``: train the 3-D U-Net and write checkpoints and result.json."""

import json
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from tracing_tools.trace.errors import IotwinError
from workloads.unet3d.config import Config, parse_config, prepare_parser

# How torch words, in a plain RuntimeError, what the machine did, not the code: no memory or a killed loader.
_MACHINE_FAILURES = ("out of memory", "can't allocate memory", "DataLoader worker")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job of the command line `argv` (default: the process's own) and return the exit status."""
    parser = ArgumentParser(prog="python -m workloads.unet3d", description="Train a 3-D U-Net on KiTS19-shaped cases.")
    prepare_parser(parser)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unwinds, so that no half checkpoint is left
    try:
        _train_and_report(parse_config(args))
    except IotwinError as error:
        print(f"unet3d: {_last_line(error)}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        print(f"unet3d: {error.filename or 'training'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("unet3d: interrupted", file=sys.stderr)
        return 130
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _MACHINE_FAILURES):
            raise
        print(f"unet3d: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def _train_and_report(config: Config) -> None:
    try:
        from workloads.unet3d.train import train
    except ModuleNotFoundError as error:
        raise IotwinError(f"training needs the Python package {error.name}; install it with: pip install iotwin[torch]") from None
    result = train(config)
    if result is not None:
        _write_json(config.output / "result.json", result)
        print(json.dumps(result), flush=True)


def _write_json(path: Path, document: dict[str, object]) -> None:
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    temporary.replace(path)


def _last_line(error: IotwinError) -> str:
    """Return the error's own line: a loader process wraps it in its traceback, and the line is the last one, after its type."""
    return str(error).strip().splitlines()[-1].removeprefix(f"{type(error).__module__}.{type(error).__qualname__}: ")


if __name__ == "__main__":
    sys.exit(main())
