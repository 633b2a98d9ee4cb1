"""Watches each operation that PyTorch carries out. The one place of the bench that stands on PyTorch's private interface; where
a version of PyTorch lacks some of it, what counts does not start, and the tests of the planner fail.

    ours        theirs
    OneThread   torch.utils._python_dispatch.TorchDispatchMode
    EachOperation  the same, OpOverload.is_view and its _schema
    ShapesOnly  torch._subclasses.FakeTensorMode
    LiveBytes   UntypedStorage._cdata, which tells one storage from another, and torch.ops.aten._local_scalar_dense
    grouped_by  torch.nn.utils.clip_grad._group_tensors_by_device_and_dtype
    map_tensors torch.utils._pytree.tree_map
    flops_of    OpOverload._overloadpacket
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils import clip_grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

READ = torch.ops.aten._local_scalar_dense.default  # of one value, as .item() and bool() do

WITHOUT_KERNEL = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "resize_"),
    *("detach", "alias", "lift_fresh", "_local_scalar_dense", "is_pinned"),
}


class OneThread(TorchDispatchMode):
    """Sees all operations inside it: of a step, too, whose images else are computed by threads without the mode."""

    def __enter__(self):
        self._n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_num_threads(self._n_threads)
        return super().__exit__(*error)


class EachOperation(OneThread):
    """Tells the name of each operation that computes something, and the bytes of the tensors that it reads and writes: views
    and what only asks for memory are left out."""

    def __init__(self, tell: Callable[[str, int], None]):
        super().__init__()
        self._tell = tell

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name, result = operation._schema.name.split("::")[1], operation(*args, **(kwargs or {}))
        if not operation.is_view and name not in WITHOUT_KERNEL:
            self._tell(name, sum(x.nbytes for x in tensors_in((args, kwargs, result))))
        return result


class LiveBytes(OneThread):
    """Counts the bytes of all storages that operations inside it make and that have not been freed: `live`, and their `peak`.

    Fake tensors count as others do; where their values are asked for, they are taken to be finite.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is READ and getattr(args[0], "fake_mode", None) is not None:
            return True if args[0].dtype == torch.bool else 1.0
        result = operation(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class ShapesOnly(FakeTensorMode):
    """Tensors without content that autocast, unlike those of the meta device, takes for the CPU's; copies stay in the mode."""

    def __deepcopy__(self, memo):
        return self


@contextlib.contextmanager
def grouped_by(device_of: Callable[[Tensor], torch.device]) -> Iterator[None]:
    """PyTorch's clipping of gradients takes tensors to be where device_of says."""
    name = "_group_tensors_by_device_and_dtype"
    group = getattr(clip_grad, name)

    def regrouped(lists: list[list[Tensor]], *given: Any) -> dict:
        found = group(lists, *given)
        return {(device_of(some[0][0]), dtype): (some, indices) for (_, dtype), (some, indices) in found.items()}

    with mock.patch.object(clip_grad, name, regrouped):
        yield


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples and dicts."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (list, tuple)):
        return []
    return [x for value in values for x in tensors_in(value)]


def map_tensors(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Nested lists, tuples and dicts with what the function makes of each tensor in them."""
    return tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, values)


def flops_of(operation: Any, args: tuple, kwargs: dict, result: Any) -> int:
    """Additions and multiplications of a product or a convolution; 0 of other operations."""
    count = flop_registry.get(operation._overloadpacket)
    return count(*args, **kwargs, out_val=result) if count else 0
