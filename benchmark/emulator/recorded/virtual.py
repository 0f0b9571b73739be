"""Replay a thread of a recording on a virtual clock, which counts its waits. Its calls are real."""

import os
import select

from iotwin.benchmark.emulator.clock import CHANGED
from iotwin.benchmark.emulator.recorded.player import Player
from iotwin.benchmark.emulator.recorded.shared import FIRST_PIPE, GO_ON, LET_GO, RUNNING, STATE, WAITING
from iotwin.benchmark.emulator.recorded.slots import PIPE, POST, ROOM, VirtualReplay


class VirtualPlayer(Player):
    """Replays one thread in its process on the virtual clock of `replay`."""

    def __init__(self, *given: object, replay: VirtualReplay) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._replay, self._clock, self._slot = replay, replay.clock, replay.slot(self._thread)
        self._word = self._process.shared.board.word
        self.now_ns = replay.clock.now_ns
        self.sleep = self._sleep_virtually

    def _sleep_virtually(self, seconds: float) -> None:
        self._clock.sleep(self._slot, seconds, lambda: self._word[0] != GO_ON)

    def _gives_up(self) -> bool:
        return self._word[0] != GO_ON or bool(self._board[LET_GO])

    def _pipe_write(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        end, held, full_at = self._process.shared.pipes.ends[pipe][1], self._replay.held, -1
        written, room = self._replay.key(PIPE, pipe), self._replay.key(ROOM, pipe)

        def fits() -> bool:
            """Write as much as the pipe takes. Return False if that is nothing, or if the pipe is as full as before."""
            nonlocal size, full_at
            if held[pipe] == full_at:  # nobody has read since the pipe was full
                return False
            try:
                count = os.write(end, self._noise[:size])
            except BlockingIOError:
                return False
            held[pipe] += count
            size -= count
            self._clock.wake(written)
            full_at = held[pipe] if size else -1
            return True

        self._board[LET_GO] = 0
        self._board[STATE] = -1 - pipe
        while size > 0 and self._clock.wait(self._slot, room, fits, self._gives_up):
            pass
        self._board[STATE] = RUNNING
        return 0

    def _pipe_read(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        end, held = self._process.shared.pipes.ends[pipe][0], self._replay.held
        written, room = self._replay.key(PIPE, pipe), self._replay.key(ROOM, pipe)

        def reads() -> bool:
            nonlocal size
            if not held[pipe]:
                return False
            count = len(os.read(end, size))
            held[pipe] -= count
            size -= count
            self._clock.wake(room)
            return True

        self._board[LET_GO] = 0
        self._board[STATE] = FIRST_PIPE + pipe
        while size > 0 and self._clock.wait(self._slot, written, reads, self._gives_up):
            pass
        self._board[STATE] = RUNNING
        return 0

    def _poll(self, pipe: int, fd: int, offset: int, size: int, flags: int) -> int:
        poll, held = select.poll(), self._replay.held
        poll.register(self._process.shared.pipes.ends[pipe][0], select.POLLIN)
        self._board[LET_GO] = 0
        self._board[STATE] = FIRST_PIPE + pipe
        if self._clock.wait(self._slot, self._replay.key(PIPE, pipe), lambda: held[pipe] > 0, self._gives_up):
            poll.poll(0)
        self._board[STATE] = RUNNING
        return 0

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
