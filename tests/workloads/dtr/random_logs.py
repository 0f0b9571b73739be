"""Random logs with views, several results, mutation, COPY, COPY_FROM, constants, zero sizes and zero times."""

import random
from pathlib import Path

from iotwin.workloads.dtr.simulator.log_format import write_line


class _Writer:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines: list[bytes] = []
        self.alive: list[str] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"x{self.count}"

    def size(self) -> int:
        return self.random.choice([0, 1, 2, 3, 5, 8, 8, 16])

    def arguments(self, least: int = 0) -> list[str]:
        recent = self.alive[-8:] if self.random.random() < 0.7 else self.alive
        return [self.random.choice(recent) for _ in range(self.random.randint(least, 3))]

    def constant(self) -> None:
        name = self.name()
        self.lines += [write_line("CONSTANT", NAME=name), write_line("MEMORY", NAME=name, MEMORY=self.size())]
        self.alive.append(name)

    def call(self) -> None:
        args, results = self.arguments(), [self.name() for _ in range(self.random.choice([1, 1, 1, 2, 3]))]
        time = self.random.choice([0, 1, 1, 2, 4, 9])
        self.lines.append(write_line("CALL", NAME="op", ARGS=args, RESULT=results, TIME=time))
        view = args and self.random.random() < 0.3
        for name in results:
            alias = self.random.randrange(len(args)) if view and self.random.random() < 0.8 else -1
            self.lines += [write_line("MEMORY", NAME=name, MEMORY=self.size()), write_line("ALIAS", NAME=name, ALIAS=alias)]
        self.alive += results

    def mutate(self) -> None:
        args = self.arguments(1)
        indices = self.random.sample(range(len(args)), self.random.randint(1, len(args)))
        distinct = {args[i]: i for i in indices}
        self.lines.append(
            write_line("MUTATE", NAME="op_", ARGS=args, MUTATE=sorted(distinct.values()), TIME=self.random.randint(0, 5))
        )

    def copy(self) -> None:
        source, name = self.random.choice(self.alive), self.name()
        self.lines.append(write_line("COPY", DST=name, SRC=source))
        self.alive.append(name)

    def copy_from(self) -> None:
        self.lines.append(write_line("COPY_FROM", DST=self.random.choice(self.alive), SRC=self.random.choice(self.alive)))

    def release(self) -> None:
        name = self.alive.pop(self.random.randrange(len(self.alive)))
        self.lines.append(write_line("RELEASE", NAME=name))

    def write(self, steps: int) -> bytes:
        for _ in range(self.random.randint(1, 3)):
            self.constant()
        kinds = [self.call] * 8 + [self.mutate, self.copy, self.copy_from, self.constant] + [self.release] * 7
        for _ in range(steps):
            kind = self.random.choice(kinds)
            if self.alive and (kind != self.release or len(self.alive) > 2):
                kind()
        while len(self.alive) > 2:
            self.release()
        return b"".join(self.lines)


def write_random_log(path: Path, seed: int) -> Path:
    writer = _Writer(seed)
    path.write_bytes(writer.write(writer.random.randint(5, 60)))
    return path
