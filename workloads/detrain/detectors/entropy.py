"""Detects randomness that no seed fixes: where a script draws from the operating system or the clock, by source and line."""

import ast
import functools
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.common.untrusted_files import read_foreign
from iotwin.workloads.detrain.detectors.after_import import after_import
from iotwin.workloads.detrain.detectors.current_call import current_call, is_given
from iotwin.workloads.detrain.detectors.findings import Findings
from iotwin.workloads.detrain.detectors.script_frames import ScriptLine, is_standard, script_line
from iotwin.workloads.detrain.instrumentation import MOST_SOURCE_BYTES

_BITS = 128  # length of a seed
_DEVICES = ("/dev/urandom", "/dev/random")
_RANDOM = ("random", "secrets", "uuid")  # modules of the standard library by which a script takes bytes
_PER_SECOND = (1, 10**3, 10**6, 10**9)  # units of clocks
_RECENT_S = 60
_WATCHED = ("random", "np.random", "numpy.random", "torch", "torch.random")  # their `seed` is watched


class EntropySources:
    """Watches the sources of entropy. With `seed`, unseeded generators and the bytes that the script draws are derived from
    `seed`.

    If the script builds names of files or runs from these bytes, a rerun then uses the same names.
    """

    draws = 0  # number of draws derived from the seed in this process

    def __init__(self, findings: Findings, seed: int | None = None) -> None:
        self._findings, self._seed = findings, seed
        self._urandom = os.urandom  # not watched

    def watch(self) -> None:
        """Replace the functions that are sources, in this process and in those that it forks."""
        self._watch_bytes()
        self._watch_python()
        after_import("uuid", self._watch_uuid)
        after_import("numpy", self._watch_numpy)
        after_import("torch", self._watch_torch)
        after_import("tensorflow", self._watch_tensorflow)

    # Missing seeds

    def _fresh_seed(self, source: str) -> int:
        """Record that a generator is made without a seed, and return a seed for it."""
        line = script_line(sys._getframe(2))
        # The standard library draws names of files and sockets. Packages create generators at import, and rarely use
        # them. Results depend on neither.
        if line is not None and not any(_is_apart(each.file) for each in line.inside):
            self._add(source, line)
            if self._seed is not None:
                words = self._keyed(self._seed).bit_generator.random_raw(2)
                return int(words[0]) << 64 | int(words[1])
        return self._system_bits(_BITS)

    def _system_bits(self, bits: int) -> int:
        return int.from_bytes(self._urandom(bits // 8), "little")

    def _keyed(self, seed: int) -> Any:
        """Return a generator for the next draw, derived from `seed` and the number of draws so far."""
        worker = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_info", None)
        # A forked worker inherits its parent's `draws`. The worker's seed, new in each epoch, makes its draws different.
        key = seed if worker is None else worker.seed % 2**63
        EntropySources.draws += 1
        return generator(key, Purpose.ENTROPY, rank=worker is not None, step=EntropySources.draws)

    def _watch_python(self) -> None:
        original = random.Random.seed

        def seed(instance: random.Random, a: Any = None, version: int = 2) -> None:
            if a is None:
                makes = sys._getframe(1).f_code is random.Random.__init__.__code__
                a = self._fresh_seed("random.Random" if makes else "random.seed")
            else:
                self._seeded(a)
            original(instance, a, version)

        random.Random.seed = functools.wraps(original)(seed)  # type: ignore[method-assign, assignment]
        random.seed = random._inst.seed

    def _watch_numpy(self) -> None:
        import numpy as np

        self._watch_seeding(np.random, "default_rng", "numpy.random.default_rng", lambda bits: bits)
        self._watch_seeding(np.random, "seed", "numpy.random.seed", _words)
        np.random.bit_generator.randbits = self._numpy_bits  # type: ignore[attr-defined]

    def _numpy_bits(self, bits: int) -> int:
        """Return `bits` random bits for a new generator of numpy, and record the line if the generator gets no seed."""
        import numpy as np

        frame = sys._getframe(1)
        call = None if frame.f_code is generator.__code__ else current_call(frame)
        if frame.f_code is generator.__code__ or (call is not None and is_given(frame, call, "seed", "entropy", "key")):
            return self._system_bits(bits)
        name = "" if call is None else ast.unparse(call.func).rpartition(".")[2]
        return self._fresh_seed(f"numpy.random.{name if hasattr(np.random, name) else 'SeedSequence'}")

    def _watch_torch(self) -> None:
        import torch

        def unseeded() -> int:
            return torch.manual_seed(self._fresh_seed("torch.seed") >> _BITS // 2).initial_seed()

        torch.random.seed = torch.seed = unseeded
        manual_seed = torch.manual_seed

        @functools.wraps(manual_seed)
        def seeded(seed: Any) -> Any:
            self._seeded(seed)
            return manual_seed(seed)

        torch.random.manual_seed = torch.manual_seed = seeded

    def _watch_tensorflow(self) -> None:
        import tensorflow as tf

        source = tf.random.Generator.from_non_deterministic_state
        recording = self._recording(source, "tf.random.Generator.from_non_deterministic_state")
        tf.random.Generator.from_non_deterministic_state = staticmethod(recording)

    def _watch_seeding(self, module: Any, name: str, source: str, converted: Callable[[int], Any]) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def seeding(seed: Any = None) -> Any:
            if seed is None:
                return original(converted(self._fresh_seed(source)))
            self._seeded(seed)
            return original(seed)

        setattr(module, name, seeding)

    def _seeded(self, seed: Any) -> None:
        """Record the script's line if the `seed` that it sets is the current time."""
        if isinstance(seed, int | float) and _is_recent(seed) and (line := script_line(sys._getframe(2))) is not None:
            self._add("time", line)

    # Bytes

    def _watch_bytes(self) -> None:
        for name in ("urandom", "getrandom"):
            setattr(os, name, self._fixing(getattr(os, name), f"os.{name}"))
        random._urandom = self._fixing(random._urandom, "random.SystemRandom")  # type: ignore[attr-defined]
        sys.addaudithook(self._audit)

    def _watch_uuid(self) -> None:
        import uuid

        uuid.uuid1 = self._recording(uuid.uuid1, "uuid.uuid1")

    def _fixing(self, original: Callable[..., bytes], source: str) -> Callable[..., bytes]:
        @functools.wraps(original)
        def fixed(size: int, *arguments: Any, **options: Any) -> bytes:
            if self._take(source, script_line(sys._getframe(1))) and self._seed is not None:
                return bytes(self._keyed(self._seed).bytes(size))
            return original(size, *arguments, **options)

        return fixed

    def _recording(self, original: Callable[..., Any], source: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def recorded(*arguments: Any, **options: Any) -> Any:
            self._take(source, script_line(sys._getframe(1)))
            return original(*arguments, **options)

        return recorded

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[0] in _DEVICES:
            line = script_line(sys._getframe(1))
            if line is not None and all(is_standard(each.file) for each in line.inside):
                self._add(arguments[0], line)

    def _take(self, source: str, line: ScriptLine | None) -> bool:
        """Return whether the script draws these bytes, directly or by `random`, `secrets` or `uuid`; if so, record the line.

        Draws of other code, such as for temporary names, are not recorded.
        """
        if line is None or not all(_is_random(each.file) for each in line.inside):
            return False
        if line.inside and (module := PurePath(line.inside[0].file).stem) != "random":
            source = f"{module}.{line.inside[0].function}"
        self._add(source, line)
        return True

    def _add(self, source: str, line: ScriptLine) -> None:
        self._findings.add(source, line.file, line.line)


def unwatched_sources(path: Path) -> list[tuple[str, int]]:
    """Return the calls of `seed` without arguments, such as torch.Generator's, in a source file: (source, line), line from 1.

    They are found in the text, whether or not they run, because classes of compiled libraries cannot be patched.
    """
    try:
        tree = ast.parse(read_foreign(path, MOST_SOURCE_BYTES))
    except (IotwinError, OSError, SyntaxError, ValueError):
        return []
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and not node.keywords)
    return [
        (f"{ast.unparse(call.func.value)}.seed", call.lineno)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "seed" and not call.args
        if ast.unparse(call.func.value) not in _WATCHED
    ]


def _is_random(file: str) -> bool:
    return is_standard(file) and PurePath(file).stem in _RANDOM


def _is_apart(file: str) -> bool:
    return file.startswith("<frozen importlib") or (is_standard(file) and not _is_random(file))


def _is_recent(seed: float) -> bool:
    """Return whether a number is a time of the last minute in any unit of _PER_SECOND, or the low 32 bits of its milliseconds."""
    now = time.time()
    whole = any(abs(seed - now * unit) < _RECENT_S * unit for unit in _PER_SECOND)
    return whole or abs(seed - now * 1000 % 2**32) < _RECENT_S * 1000


def _words(bits: int) -> list[int]:
    """Return 128 bits as four words of 32, which numpy's older generators take."""
    return [bits >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
