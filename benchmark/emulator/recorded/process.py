"""One process of a replay: its threads, the processes that it forks, and a watch that releases threads which wait forever."""

import contextlib
import os
import queue
import signal
import threading

import numpy as np

from iotwin.benchmark.emulator.recorded.open_files import Descriptors, Maps
from iotwin.benchmark.emulator.recorded.player import Player
from iotwin.benchmark.emulator.recorded.shared_state import (
    DONE,
    ENDED_NS,
    FAILED,
    GO_ON,
    LET_GO,
    RUNNING,
    STOPPED,
    WAITING,
    Shared,
)
from iotwin.benchmark.emulator.recorded.virtual_player import VirtualPlayer
from iotwin.common.processes.children import become_child
from iotwin.trace_store.schema import FLAG_CREATE, FLAG_TRUNCATE
from iotwin.workload_yaml.recording import RENAMED

_MAKES = FLAG_CREATE | FLAG_TRUNCATE
_STUCK_TICKS = 10  # inspections without any progress after which waiting threads are released


class ReplayedProcess:
    """Runs process `number` of the recording in this process. `parent`: the replayed process that forked it."""

    def __init__(self, shared: Shared, number: int, parent: "ReplayedProcess | None" = None) -> None:
        self.shared, self.number, self.files = shared, number, shared.files
        # A forked process has its parent's descriptors and maps.
        self.fds: Descriptors = parent.fds if parent else Descriptors(self._open_again)
        self.maps: list[Maps] = list(parent.maps) if parent else []
        self.channels: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in range(shared.recording.header.channels)]
        self._children: dict[int, int] = {}
        self._threads: list[tuple[int, threading.Thread]] = []

    def run(self, begin_ns: int) -> None:
        """Replay the main thread, which starts the others. Return when all threads and child processes have ended."""
        main, virtual = self.shared.main(self.number), self.shared.virtual
        self._play(main, begin_ns)
        for number, thread in self._threads:
            if virtual is not None:
                virtual.wait_for_end(main, number, self.shared.is_over)
            thread.join()
        for number in list(self._children):
            self.join(number, main)
        if virtual is not None:
            virtual.end(main)

    def _open_again(self, file: int, flags: int) -> int:
        return self.files.open(file, bool(flags & RENAMED), flags & ~_MAKES)

    def _play(self, thread: int, begin_ns: int) -> None:
        try:
            self._player(thread, begin_ns).play()
        except Exception as error:
            self.shared.fail(error)
            self.shared.board.of(thread)[0] = DONE

    def _player(self, thread: int, begin_ns: int) -> Player:
        virtual = self.shared.virtual
        if virtual is None:
            return Player(self, thread, begin_ns)
        virtual.clock.enter(virtual.slot(thread))
        return VirtualPlayer(self, thread, begin_ns, replay=virtual)

    def _play_thread(self, thread: int, begin_ns: int) -> None:
        self._play(thread, begin_ns)
        if self.shared.virtual is not None:
            self.shared.virtual.end(thread)

    def start_thread(self, thread: int, begin_ns: int) -> None:
        """Start a thread that replays the recording's `thread`. Its first row is timed from `begin_ns` (CLOCK_MONOTONIC)."""
        if self.shared.virtual is not None:
            self.shared.virtual.begin(thread)
        started = threading.Thread(target=self._play_thread, args=(thread, begin_ns), daemon=True)
        started.start()
        self._threads.append((thread, started))

    def start(self, number: int, begin_ns: int) -> None:
        """Fork a process that replays the recording's process `number`.

        Its first row is timed from `begin_ns` (CLOCK_MONOTONIC).
        """
        if self.shared.virtual is not None:
            self.shared.virtual.begin(self.shared.main(number))
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._children[number] = pid
            return
        status = 1
        try:
            become_child(f"iotwin-loader{number}", parent)
            ReplayedProcess(self.shared, number, self).run(begin_ns)
            status = 0
        except BaseException as error:
            self.shared.fail(error)
        finally:
            os._exit(status)

    def join(self, number: int, waiting: int) -> int:
        """Let the thread `waiting` wait for the process `number` to end. Return when its end was due; 0 if it does not run."""
        pid = self._children.pop(number, None)
        if pid is None:
            return 0
        if self.shared.virtual is not None:
            self.shared.virtual.wait_for_end(waiting, self.shared.main(number), self.shared.is_over)
        _, status = os.waitpid(pid, 0)
        if status and self.shared.board.word[0] != FAILED:
            self.shared.fail(RuntimeError(f"process {pid} of the replay ended with status {os.waitstatus_to_exitcode(status)}"))
        return self.shared.board.of(self.shared.main(number))[ENDED_NS]

    def wait(self, channel: int, tick_s: float) -> int:
        """Wait for a post on a channel, and return when the post was due; 0 if the replay ends before the post."""
        while self.shared.board.word[0] == GO_ON:
            with contextlib.suppress(queue.Empty):
                return self.channels[channel].get(timeout=tick_s)
        return 0

    def end_children(self) -> None:
        """Kill the child processes. Their own children die with them."""
        for pid in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


class ReplayWatch(threading.Thread):
    """Releases threads that wait for a pipe if all threads wait for one another, or if the replay stops."""

    def __init__(self, shared: Shared, tick_s: float = 0.5) -> None:
        super().__init__(daemon=True)
        self._shared, self._tick_s, self._ended = shared, tick_s, threading.Event()
        self.freed = 0  # number of threads released because they waited for one another

    def run(self) -> None:
        """Inspect the board every `tick_s` seconds until `end` is called."""
        before, quiet = self._shared.board.states(), 0
        while not self._ended.wait(self._tick_s):
            virtual = self._shared.virtual
            if virtual is not None and virtual.clock.end_dead() and self._shared.board.word[0] == GO_ON:
                self._shared.fail(RuntimeError("a process of the replay was killed"))
            if self._shared.now_ns() >= self._shared.deadline_ns and self._shared.board.word[0] == GO_ON:
                self._shared.board.word[0] = STOPPED
            now = self._shared.board.states()
            state = now[:, 0]
            on_pipes = np.flatnonzero((state < 0) | (state > WAITING))
            quiet = quiet + 1 if (now == before).all() and not (state == RUNNING).any() and len(on_pipes) else 0
            before = now
            over = self._shared.board.word[0] != GO_ON
            if over or quiet >= _STUCK_TICKS:
                for thread in on_pipes.tolist():
                    row = self._shared.board.of(thread)
                    # A thread may need until the next inspection to go on.
                    self.freed += 0 if over or row[LET_GO] else 1
                    row[LET_GO] = 1
                    if virtual is None:
                        self._shared.pipes.free_one(int(state[thread]))

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self.join()
