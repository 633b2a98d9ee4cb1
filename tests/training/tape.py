"""A CUDA graph on a CPU: operations are noted once and repeated on the same tensors, without the code that led to them."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """The operations inside it. `replay` computes them again, each into the tensors that it made."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        assert operation is not torch.ops.aten._local_scalar_dense.default, "a graph cannot read a value"
        made = operation(*args, **(kwargs or {}))
        self.operations.append((operation, args, kwargs or {}, made))
        return made

    @torch.no_grad()
    def replay(self):
        for operation, args, kwargs, made in self.operations:
            if operation.is_view:
                continue
            found = operation(*args, **kwargs)
            for own, new in zip(tree_leaves(made), tree_leaves(found), strict=True):
                if isinstance(own, torch.Tensor) and own is not new:
                    own.detach().copy_(new)


def record(work):
    """A recorder like graf.training.graphs.CudaRecorder: afterwards the numbers in the result are to be made by a replay."""
    with Tape() as tape:
        result = work()
    return tape.replay, result
