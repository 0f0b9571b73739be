"""The command line, in which one rank of mpirun's fails at one point: failing_rank.py MODULE:NAME RANK ERROR WORDS..."""

import builtins
import importlib
import sys
from functools import reduce
from typing import Any, NoReturn

from iotwin.common.errors import IotwinError
from iotwin.common.ranks import launched_by_mpi
from iotwin.main import main


def _fail(*_args: Any, **_options: Any) -> NoReturn:
    error = sys.argv[3]
    raise IotwinError("made to fail") if error == "IotwinError" else getattr(builtins, error)("made to fail")


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    *owners, last = name.split(".")
    if launched_by_mpi().rank == int(sys.argv[2]):
        setattr(reduce(getattr, owners, importlib.import_module(module)), last, _fail)
    sys.exit(main(sys.argv[4:]))
