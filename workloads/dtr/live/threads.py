"""Puts new threads under the memory budget, too: PyTorch's dispatch modes hold only for the thread that enters them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def shared_with_threads(mode: TorchDispatchMode) -> Iterator[None]:
    """Enter `mode`. Threads that start within the block enter it, too, and so does work submitted there to a ThreadPoolExecutor.

    A thread that runs on after the block remains in the mode.
    """
    entered = threading.local()
    start: Callable[..., None] = threading.Thread.start
    submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

    def within(work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)
        def enter_and_work(*args: Any, **kwargs: Any) -> Any:
            if hasattr(entered, "mode"):  # submitted work that runs in a thread which started within the block
                return work(*args, **kwargs)
            _python_dispatch._push_mode(mode)  # the mode's own __enter__ keeps the state of one thread
            entered.mode = mode
            try:
                return work(*args, **kwargs)
            finally:
                _python_dispatch._pop_mode(None)
                del entered.mode

        return enter_and_work

    def start_within(thread: threading.Thread) -> None:
        thread.run = within(thread.run)  # type: ignore[method-assign]
        start(thread)

    def submit_within(pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return submit(pool, within(work), *args, **kwargs)

    threading.Thread.start = start_within  # type: ignore[assignment, method-assign]
    ThreadPoolExecutor.submit = submit_within  # type: ignore[assignment, method-assign]
    try:
        with mode:
            yield
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
