"""How much memory a computation holds."""

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class HeldBytes(TorchDispatchMode):
    """Counts the bytes of tensors that operations made and somebody still holds; `most` is the most at once."""

    def __init__(self):
        super().__init__()
        self.storages, self.most = WeakIdKeyDictionary(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = function(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.untyped_storage()._cdata not in given:
                self.storages[x.untyped_storage()] = x.untyped_storage().nbytes()
        self.most = max(self.most, sum(self.storages.values()))
        return out
