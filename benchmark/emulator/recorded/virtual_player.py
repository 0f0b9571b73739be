"""Replay a thread of a recording whose waits pass on a virtual clock. Its calls are real.

A thread's own time, `due`, is the sum of the recorded times between its calls and of the measured times of its calls. The time
that the player itself needs delays the thread, but is not part of `due`. A message carries its sender's own time. The message is
received at that time or when the receiver is due, whichever is later.
"""

import os
import select

from iotwin.benchmark.emulator.recorded.player import Player
from iotwin.benchmark.emulator.recorded.shared_state import FIRST_PIPE, GO_ON, LET_GO, RUNNING, STATE, WAITING
from iotwin.benchmark.emulator.recorded.thread_slots import PIPE, POST, ROOM, VirtualReplay
from iotwin.benchmark.emulator.virtual_clock import CHANGED
from iotwin.workload_yaml.recording import Op

_ON_PIPES = frozenset({Op.PIPE_WRITE, Op.PIPE_READ, Op.POLL})


class VirtualPlayer(Player):
    """Replays one thread in its process on the virtual clock of `replay`."""

    longest_delay_ns = 1 << 62

    def __init__(self, *given: object, replay: VirtualReplay) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._replay, self._clock, self._slot = replay, replay.clock, replay.slot(self._thread)
        self._word = self._process.shared.board.word
        self.now_ns = replay.clock.now_ns
        self.sleep = self._sleep_virtually

    def _sleep_virtually(self, seconds: float) -> None:
        self._clock.sleep(self._slot, seconds, lambda: self._word[0] != GO_ON)

    def _after(self, op: int, due: int, begun: int, ended: int, moved: int) -> int:
        if op in _ON_PIPES:
            return max(due, moved)
        return super()._after(op, due, begun, ended, moved)

    def _gives_up(self) -> bool:
        return self._word[0] != GO_ON or bool(self._board[LET_GO])

    def _pipe_write(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        end, times, full_at, due_ns = self._process.shared.pipes.ends[pipe][1], self._replay.pipes, -1, self._due_ns
        written, room = self._replay.key(PIPE, pipe), self._replay.key(ROOM, pipe)

        def fits() -> bool:
            """Write as much as the pipe accepts. Return False if nothing fits, or if the pipe is as full as before."""
            nonlocal size, full_at, due_ns
            if times.held(pipe) == full_at:  # nobody has read since the pipe was full
                return False
            try:
                count = os.write(end, self._noise[:size])
            except BlockingIOError:
                full_at = times.held(pipe)
                return False
            if full_at >= 0:
                due_ns = max(due_ns, times.room_due(pipe))
            times.write(pipe, count, due_ns)
            size -= count
            self._clock.wake(written)
            full_at = times.held(pipe) if size else -1
            return True

        self._board[LET_GO] = 0
        self._board[STATE] = -1 - pipe
        while size > 0 and self._clock.wait(self._slot, room, fits, self._gives_up):
            pass
        self._board[STATE] = RUNNING
        return self.now_ns() if size > 0 else due_ns

    def _pipe_read(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        end, times, due_ns = self._process.shared.pipes.ends[pipe][0], self._replay.pipes, self._due_ns
        written, room = self._replay.key(PIPE, pipe), self._replay.key(ROOM, pipe)

        def reads() -> bool:
            nonlocal size, due_ns
            if not times.held(pipe):
                return False
            count = len(os.read(end, size))
            due_ns = times.read(pipe, count, due_ns)
            size -= count
            self._clock.wake(room)
            return True

        self._board[LET_GO] = 0
        self._board[STATE] = FIRST_PIPE + pipe
        while size > 0 and self._clock.wait(self._slot, written, reads, self._gives_up):
            pass
        self._board[STATE] = RUNNING
        return self.now_ns() if size > 0 else due_ns

    def _poll(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        poll, times, due_ns = select.poll(), self._replay.pipes, [self._due_ns]
        poll.register(self._process.shared.pipes.ends[pipe][0], select.POLLIN)
        self._board[LET_GO] = 0
        self._board[STATE] = FIRST_PIPE + pipe

        def holds() -> bool:
            if not times.held(pipe):
                return False
            due_ns[0] = times.next_due(pipe)
            return True

        if self._clock.wait(self._slot, self._replay.key(PIPE, pipe), holds, self._gives_up):
            poll.poll(0)
        else:
            due_ns[0] = self.now_ns()
        self._board[STATE] = RUNNING
        return due_ns[0]

    def _post(self, channel: int, fd: int, offset: int, size: int, flags: int) -> int:
        with self._clock.locked():
            self._process.channels[channel].put(self._due_ns)
            self._clock.wake(self._channel(channel))
        return 0

    def _wait(self, channel: int, fd: int, offset: int, size: int, flags: int) -> int:
        posts, taken = self._process.channels[channel], [0]

        def takes() -> bool:
            if posts.empty():
                return False
            taken[0] = posts.get()
            return True

        self._board[STATE] = WAITING
        self._clock.wait(self._slot, self._channel(channel), takes, lambda: self._word[0] != GO_ON)
        self._board[STATE] = RUNNING
        return taken[0]

    def _channel(self, channel: int) -> int:
        """Return the key of a channel of this process."""
        return self._replay.key(POST, self._process.number * len(self._process.channels) + channel)

    def _meet(self, subject: int, fd: int, offset: int, size: int, flags: int) -> int:
        all_arrived = self._process.shared.arrive()
        self._board[STATE] = WAITING
        self._clock.wait(self._slot, CHANGED, all_arrived, lambda: self._word[0] != GO_ON)
        self._board[STATE] = RUNNING
        return 0
