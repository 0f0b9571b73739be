"""Sends tensors between the ranks of a pipeline. A header with the shape precedes each tensor, so that batch sizes may differ.

gloo transfers a tensor only after the receiver has called its receive function. Therefore a thread receives the input of the next
pass while a rank computes, as in PipeDream's runtime.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue

import torch
from torch import Tensor, distributed

from iotwin.common.errors import IotwinError

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool
)  # fmt: skip
_MOST_DIMENSIONS = 8
_HEADER = 3 + _MOST_DIMENSIONS  # index of the type, whether a gradient returns, number of dimensions, sizes
_MOST_IN_FLIGHT = 1 << 12  # most minibatches in flight, after which tags are used again


class Links:
    """The channels between this rank and all others. `edges` is the number of tensors that cross between two stages.

    The argument `edge` of methods is the index of such a (tensor, sending stage, receiving stage). `send` returns at once, and
    `settle` waits until the receivers have all tensors. They and `receive` raise IotwinError if the other rank has ended.
    `sent_bytes` and `received_bytes` count the contents of tensors, without headers.
    """

    def __init__(self, edges: int) -> None:
        self._edges = edges
        self.sent_bytes = self.received_bytes = 0
        self._sent: list[tuple[distributed.Work | None, Tensor, int]] = []
        self._expected: dict[tuple[int, int], Future[Tensor]] = {}  # by the rank that sends, and the tag
        self._asked: SimpleQueue[tuple[int, int]] | None = None

    def send(self, tensor: Tensor, rank: int, minibatch: int, edge: int, backward: bool = False) -> None:
        """Send a tensor to `rank`. The receiver's copy requires a gradient if `tensor` does."""
        data = tensor.detach().contiguous()
        if data.dim() > _MOST_DIMENSIONS:
            raise IotwinError(f"a tensor of {data.dim()} dimensions crosses stages; at most {_MOST_DIMENSIONS} can")
        header = torch.zeros(_HEADER, dtype=torch.int64)
        header[0], header[1], header[2] = _DTYPES.index(data.dtype), int(tensor.requires_grad), data.dim()
        header[3 : 3 + data.dim()] = torch.tensor(data.shape, dtype=torch.int64)
        tag = self._tag(minibatch, edge, backward)
        self.sent_bytes += data.nbytes
        self._sent = [(work, kept, to) for work, kept, to in self._sent if work is not None and not work.is_completed()]
        for part, content in enumerate((header, data)):
            with _naming(rank):
                self._sent.append((distributed.isend(content, rank, tag=tag + part), content, rank))

    def expect(self, rank: int, minibatch: int, edge: int, backward: bool = False) -> None:
        """Make a thread receive a tensor from `rank`, which `receive` then returns. The thread receives in order of the calls."""
        if self._asked is None:
            self._asked = SimpleQueue()
            threading.Thread(target=self._receive_expected, args=(self._asked,), name="receiver", daemon=True).start()
        key = (rank, self._tag(minibatch, edge, backward))
        self._expected[key] = Future()
        self._asked.put(key)

    def _receive_expected(self, asked: "SimpleQueue[tuple[int, int]]") -> None:
        while True:
            key = asked.get()
            future = self._expected[key]
            try:
                future.set_result(_received(*key))
            except Exception as error:
                future.set_exception(error)

    def receive(self, rank: int, minibatch: int, edge: int, backward: bool = False) -> Tensor:
        """Wait for a tensor from `rank` and return it as a leaf, which requires a gradient if the sender's tensor did."""
        key = (rank, self._tag(minibatch, edge, backward))
        tensor = self._expected[key].result() if key in self._expected else _received(*key)
        self._expected.pop(key, None)
        self.received_bytes += tensor.nbytes
        return tensor

    def settle(self) -> None:
        """Wait until the receivers have all tensors that this rank has sent."""
        for work, _, rank in self._sent:
            if work is not None:
                with _naming(rank):
                    work.wait()
        self._sent = []

    def _tag(self, minibatch: int, edge: int, backward: bool) -> int:
        return (((minibatch % _MOST_IN_FLIGHT) * self._edges + edge) * 2 + backward) * 2


def _received(rank: int, tag: int) -> Tensor:
    header = torch.empty(_HEADER, dtype=torch.int64)
    with _naming(rank):
        distributed.recv(header, rank, tag=tag)
    kind, needs_gradient, dimensions, *sizes = header.tolist()
    tensor = torch.empty(sizes[:dimensions], dtype=_DTYPES[kind])
    with _naming(rank):
        distributed.recv(tensor, rank, tag=tag + 1)
    return tensor.requires_grad_(bool(needs_gradient))


@contextmanager
def _naming(rank: int) -> Iterator[None]:
    """If the connection to the other rank breaks within the block, raise an IotwinError that names this `rank`."""
    try:
        yield
    except RuntimeError as error:
        first = (str(error).splitlines() or ["connection lost"])[0]
        raise IotwinError(f"the connection to rank {rank} broke, so that rank has probably ended: {first}") from None
