"""Runs the program of a workload: parses options, prints errors in one line, sets the exit status, writes result.json."""

import json
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.files import write_json
from iotwin.common.signals import interrupted_status

# A RuntimeError of torch with such a text comes from the machine (no memory, a killed loader), not from a mistake in the code.
_MACHINE_FAILURES = ("out of memory", "can't allocate memory", "DataLoader worker")
Result = dict[str, Any]


def run_program(
    name: str,
    description: str,
    prepare_parser: Callable[[ArgumentParser], None],
    run: Callable[[Namespace], Result | None],
    argv: Sequence[str] | None,
) -> int:
    """Run the training job that the arguments `argv` specify (None: those of this process). Return the exit status.

    `run` executes the job. On rank 0 it returns the job's result, which is printed as JSON on the last line; on other ranks None.
    """
    parser = ArgumentParser(prog=f"python -m iotwin.workloads.{name}", description=description)
    prepare_parser(parser)
    args = parser.parse_args(argv)
    # SIGTERM raises KeyboardInterrupt, so that no partial checkpoint remains
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = run(args)
        if result is not None:
            write_result(args.output, result)
            print(json.dumps(result), flush=True)
    except IotwinError as error:
        print(f"{name}: {_last_line(error)}", file=sys.stderr)
        return error.exit_status
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = "tensorflow" if package == "tensorflow" else "torch"
        print(
            f"{name}: training needs the Python package {package}; install it with: pip install iotwin[{extra}]", file=sys.stderr
        )
        return 1
    except MemoryError:
        print(f"{name}: out of memory; make the model or the batch smaller", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{name}: {error.filename or 'training'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return interrupted_status()
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _MACHINE_FAILURES):
            raise
        advice = "; make the model or the batch smaller" if "memory" in str(error) else ""
        print(f"{name}: {str(error).strip().splitlines()[0]}{advice}", file=sys.stderr)
        return 1
    return 0


def write_result(output: Path, result: Result) -> None:
    """Write result.json in `output` atomically."""
    write_json(output / "result.json", result)


def plain_configuration(config: Any) -> dict[str, Any]:
    """Return the fields of the dataclass `config` as JSON values, without the fields that are None."""
    return _plain(asdict(config))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _plain(value)
        if isinstance(value, dict)
        else list(value)
        if isinstance(value, tuple)
        else value
        if isinstance(value, (int, float))
        else str(value)
        for key, value in values.items()
        if value is not None
    }


def _last_line(error: IotwinError) -> str:
    """Return the error's message. If a loader process raised the error, its text is a traceback that ends in the message."""
    return str(error).strip().splitlines()[-1].removeprefix(f"{type(error).__module__}.{type(error).__qualname__}: ")
