"""CUDA graphs of a step's gradients: recorded once and replayed on new batches, so that the host launches nothing by itself.

A recording is good while all that its operations take besides the batch stays as it is: shapes, the values that depend on the
step, and the addresses of the weights, which optimizers change in place.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar

from graf.errors import GrafError
from graf.runtime.device import clean_up
from graf.runtime.out_of_memory import first_line
from graf.tensors import each_tensor, tensors_of
from graf.training.statistics import Values

import torch
from torch import Tensor, nn

log = logging.getLogger("graf")

T, BatchType = TypeVar("T"), TypeVar("BatchType")
Gradients = tuple[Values, Tensor | None]  # of `graf.training.learn.gradients`
Recorder = Callable[[Callable[[], T]], tuple[Callable[[], None], T]]  # as CudaRecorder

EAGER_STEPS = 3  # of each kind before it is recorded: they choose cuDNN's kernels, and make what is kept
MOST_KINDS = 4  # of a network's steps are remembered: with and without a gradient penalty, low-resolution and whole ones


@dataclass
class Recording:
    """A graph with the memory that it reads and writes: the batch's, the network's gradients, the function's result."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    of_network: dict[nn.Parameter, Tensor]
    found: Gradients

    def replay_on(self, inputs: list[Tensor]) -> Gradients:
        """The recorded function's result for the memory of a batch; the network has its gradients until the next replay."""
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new, non_blocking=True)
        self.replay()
        for p, gradient in self.of_network.items():
            p.grad = gradient
        values, gradient = self.found
        return replace(values, flat=values.flat.clone()), gradient


def memory_and_layout(batch: object) -> tuple[list[Tensor], list[tuple]]:
    """The memory in which the batch's tensors lie, as bytes: tensors that were copied to the GPU in one block share one. And
    where each of them lies, and in which memory."""
    memories: dict[int, tuple[int, Tensor]] = {}
    layout = []
    for x in tensors_of(batch):
        storage = x.untyped_storage()
        if storage.data_ptr() not in memories:
            memories[storage.data_ptr()] = len(memories), x.new_empty(0, dtype=torch.uint8).set_(storage)
        index, _ = memories[storage.data_ptr()]
        layout.append((index, x.shape, x.dtype, x.stride(), x.storage_offset()))
    return [memory for _, memory in memories.values()], layout


def in_own_memory(batch: T) -> T:
    """A copy of the batch, of the same layout."""
    memories, _ = memory_and_layout(batch)
    own = {memory.data_ptr(): memory.clone().untyped_storage() for memory in memories}

    def copied(x: Tensor) -> Tensor:
        return x.new_empty(0).set_(own[x.untyped_storage().data_ptr()], x.storage_offset(), x.shape, x.stride())

    return each_tensor(batch, copied)


class CudaRecorder:
    """Records work in CUDA graphs that share their memory: a step is over with one's gradients before it replays another."""

    def __init__(self):
        self._pool: tuple[int, int] | None = None

    def __call__(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Returns a function that repeats the work, and the result that each repetition fills; nothing is computed yet."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        in_graph = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")  # the loader's threads go on
        with torch.cuda.stream(here), in_graph:  # after a failure too the next work is on the stream of before
            result = work()
        return graph.replay, result


class Graphs:
    """The recordings of a run's steps, one for each kind of step; none, where there is nothing that records."""

    def __init__(self, new_recorder: Callable[[], Recorder] | None = None):
        self._new_recorder = new_recorder
        self.clear()

    def __bool__(self) -> bool:
        """Whether steps are recorded."""
        return self._new_recorder is not None

    @property
    def recorded(self) -> int:
        """The number of recordings, which hold memory."""
        return sum(isinstance(known, Recording) for known in self._kinds.values())

    def clear(self) -> None:
        """Forget all recordings, since tensors of the state are new ones."""
        self._kinds: dict[tuple[nn.Module, Hashable], int | Recording] = {}  # or how often computed; newest last
        self._record = self._new_recorder() if self else None  # a new one, whose memory no old graph has

    def give_up(self, why: str) -> None:
        """Forget all recordings and make no more; the log says why."""
        if self:
            advice = "operations are launched one by one, which takes longer; training.cuda_graphs=none does so from the start"
            log.warning("steps are no longer recorded as CUDA graphs (%s): %s", why, advice)
        self._new_recorder = None
        self.clear()

    def gradients(
        self, compute: Callable[[BatchType], Gradients], network: nn.Module, batch: BatchType, constants: tuple
    ) -> Gradients:
        """Return compute(batch), with its gradients in the network; by a recording after enough steps of the same constants
        and shapes. Raises GrafError where PyTorch cannot go on after a failed recording."""
        if not self or torch.is_anomaly_enabled():  # anomaly detection waits for the GPU, which a recording cannot
            return compute(batch)
        inputs, layout = memory_and_layout(batch)
        kind = network, (*constants, *layout, *map(len, inputs))
        known = self._kinds.pop(kind, 0)
        if known == EAGER_STEPS:
            known = self._recorded(compute, network, batch)
        if not self:
            return compute(batch)
        self._kinds[kind] = known if isinstance(known, Recording) else known + 1
        of_network = [kind for kind in self._kinds if kind[0] is network]
        if len(of_network) > MOST_KINDS:
            del self._kinds[of_network[0]]
        return known.replay_on(inputs) if isinstance(known, Recording) else compute(batch)

    def _recorded(self, compute: Callable[[BatchType], Gradients], network: nn.Module, batch: BatchType) -> Recording | None:
        """The recording of a step; None after one that failed, which are given up."""
        try:
            batch = in_own_memory(batch)
            replay, found = self._record(lambda: compute(batch))
        except Exception as error:
            self.give_up(f"one cannot be recorded: {first_line(error.__context__ or error)}")
        else:
            of_network = {p: p.grad for p in network.parameters() if p.grad is not None}
            return Recording(replay, memory_and_layout(batch)[0], of_network, found)
        try:
            clean_up()
        except RuntimeError as error:  # before version 2.12 PyTorch's allocator may take the failed recording for unfinished
            message = f"PyTorch {torch.__version__} cannot go on after a CUDA graph that could not be recorded"
            advice = "start the run again with --set training.cuda_graphs=none; it continues from its last checkpoint"
            raise GrafError(f"{message} ({first_line(error)}); {advice}") from None
        return None
