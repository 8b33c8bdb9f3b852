"""Functions of nets as functions of their weights too; `NetFunction` compiles those without a gradient."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from slm_lab.agent.compile.engine import CompiledFunction


class Root(nn.Module):
    """A function as the forward pass of a module with its nets, whose weights can then be arguments."""

    def __init__(self, function: Callable[..., Any], nets: Sequence[nn.Module]) -> None:
        super().__init__()
        self.function = function
        self.nets = nn.ModuleList(nets)

    def forward(self, *args: Any) -> Any:
        return self.function(*args)

    def call_with(self, values: dict[str, Tensor], args: Any) -> Any:
        """The function with other weights and buffers."""
        return functional_call(self, values, args, tie_weights=False)

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters by name, one name for each module that has them.

        A module that is part of two others is listed once, because it must not be replaced and restored twice.
        """
        return {
            f"{path}.{name}": parameter
            for path, module in self.named_modules()
            for name, parameter in module.named_parameters(recurse=False)
        }

    def own_buffers(self) -> dict[str, Tensor]:
        """Buffers by name, such as the statistics of norm layers."""
        return {
            f"{path}.{name}": buffer
            for path, module in self.named_modules()
            for name, buffer in module.named_buffers(recurse=False)
        }


class NetFunction:
    """A function of nets without gradient as one compiled graph.

    It must be closed, as a loss must be (see `GradientStep`), and the nets stay in evaluation mode.
    """

    def __init__(self, function: Callable[..., Any], nets: Sequence[nn.Module]) -> None:
        self._root = Root(function, nets)
        values = {name: parameter.detach() for name, parameter in self._root.own_parameters().items()}
        state = {**values, **self._root.own_buffers()}
        self._graph = CompiledFunction(self._call, state, writes=False, plain=function)

    def __call__(self, *args: Any) -> Any:
        return self._graph(*args)

    def _call(self, state: dict[str, Tensor], args: Any) -> Any:
        return self._root.call_with(state, args)
