"""Where the first number that is not finite comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, cast

import torch
from torch import Tensor, nn

from rlinf.core.errors import NonFiniteError
from rlinf.engines.random_state import random_state, restore_random_state


class FiniteWatch:
    """While it is entered, the first module whose output, or whose output's or parameter's gradient, is not finite raises.

    Use: `with FiniteWatch(policy): loss(policy(batch)).backward()`, to run a step again that was skipped: it looks at every tensor,
    and waits for the device each time.

    Args:
        module: all of its submodules are watched.
        name: what the module is called in messages.
    """

    def __init__(self, module: nn.Module, name: str = "policy") -> None:
        self._module: Any = module
        self._name = name
        self._handles: list[Any] = []

    def __enter__(self) -> FiniteWatch:
        """Sets the hooks.

        Raises:
            NonFiniteError: a parameter or buffer is not finite already.
        """
        # Before any hook is set, as a context that was not entered is not left.
        state: dict[str, Tensor] = self._module.state_dict()
        for name, tensor in state.items():
            self._check(f"{self._name}.{name}", "its value", tensor, "Load another checkpoint, or look at the step before.")
        for name, part in self._module.named_modules():
            path = f"{self._name}.{name}" if name else self._name
            self._handles.append(part.register_forward_hook(self._watched(path), with_kwargs=True))
        for name, parameter in self._module.named_parameters():
            # torch refuses a hook on a tensor that gets no gradient.
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._gradient(f"{self._name}.{name}", "its gradient")))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watched(self, path: str) -> Any:
        def hook(_: nn.Module, args: Any, named: Any, output: Any) -> None:
            clean = all(_finite(tensor) for _, tensor in tensors_of([args, named]))
            source = "its inputs are finite: it arises here" if clean else "its inputs are not: it came from outside"
            for place, tensor in tensors_of(output):
                self._check(path, f"output{place}", tensor, f"{source[0].upper()}{source[1:]}.")
                if tensor.requires_grad:
                    self._handles.append(cast("Any", tensor).register_hook(self._gradient(path, f"the gradient of output{place}")))

        return hook

    def _gradient(self, path: str, what: str) -> Any:
        def hook(gradient: Tensor) -> None:
            self._check(path, what, gradient, "It arises in what comes after this in the forward pass, or in the loss.")

        return hook

    @staticmethod
    def _check(path: str, what: str, tensor: Tensor, remedy: str) -> None:
        if _finite(tensor):
            return
        bad = ~torch.isfinite(tensor)
        nans = int(torch.isnan(tensor).sum())
        first = tuple(int(i) for i in bad.nonzero()[0])
        counts = f"{nans} NaN and {int(bad.sum()) - nans} infinite of {tensor.numel()} values, the first at {first}"
        raise NonFiniteError(path, f"{what} has {counts}", remedy)


def where_not_finite(module: nn.Module, again: Callable[[], object]) -> str:
    """Computes something again, with the same random numbers, and says where its numbers cease to be finite.

    Args:
        module: what is watched, as in `FiniteWatch`.
        again: computes it; gradients that it adds are left where they are.
    """
    random = random_state()
    try:
        with FiniteWatch(module):
            again()
    except NonFiniteError as error:
        return str(error)
    finally:
        restore_random_state(random)
    return "its numbers are finite when they are computed again"


def tensors_of(tree: Any, place: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested tuples, lists and dictionaries, with their places: `[0]['logits']`."""
    if isinstance(tree, Tensor):
        yield place, tree
    elif isinstance(tree, dict):
        for key, part in cast("dict[Any, Any]", tree).items():
            yield from tensors_of(part, f"{place}[{key!r}]")
    elif isinstance(tree, (tuple, list)):
        for index, part in enumerate(cast("list[Any]", tree)):
            yield from tensors_of(part, f"{place}[{index}]")


def _finite(tensor: Tensor) -> bool:
    return not tensor.dtype.is_floating_point or bool(torch.isfinite(tensor).all())
