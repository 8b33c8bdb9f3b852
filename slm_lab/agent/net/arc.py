"""Nets written as data: layers by name, and a graph of their connections."""

from math import prod
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.pooling import _AdaptiveAvgPoolNd, _AdaptiveMaxPoolNd

from slm_lab.agent.net.layer import MISFITS, Budget, build_layer, first_line
from slm_lab.lib.errors import SpecError, nearest
from slm_lab.spec.problem import describe_first, show
from slm_lab.spec.reader import printable
from slm_lab.spec.types import Model, Str

# limits, since an arc may come from an untrusted file
MAX_MODULES = 1_000
MAX_PASS = 100_000_000  # values computed in the forward pass of the example

Name = Annotated[Str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
# a module's name, or name~tag to use the module again
Node = Annotated[Str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*(~[A-Za-z0-9_-]+)?$")]
Ref = int | list["Ref"]  # the slot of a value in a forward pass, or a list of such slots
M = TypeVar("M", bound=BaseModel)


class GraphSpec(Model):
    """The inputs of each node, in the order of the forward pass."""

    input: Name | tuple[Name]
    modules: dict[Node, object] = Field(min_length=1)
    output: Str | tuple[Str]


class ArcSpec(Model):
    """Modules by name; the graph may be left out if there is only one."""

    modules: dict[Name, object] = Field(min_length=1)
    graph: GraphSpec | None = None


class CompactLayer(Model):
    """A layer that is repeated with the values of some arguments."""

    type: Str
    keys: Str | tuple[Str, ...]
    args: tuple[object, ...] = Field(min_length=1)


class CompactSpec(Model):
    """Layers before and after each repetition of a layer."""

    prelayer: tuple[object, ...] = ()
    layer: CompactLayer
    postlayer: tuple[object, ...] = ()


class Step(NamedTuple):
    """One call of the forward pass; its result takes the next slot."""

    module: str
    args: list[Ref]
    kwargs: dict[str, Ref]


def _resolve(ref: Ref, values: list[Any]) -> Any:
    """The value, or list of values, behind a reference."""
    return values[ref] if isinstance(ref, int) else [_resolve(item, values) for item in ref]


class ArcNet(nn.Module):
    """A net that runs its graph step by step; `paths` are the places of its layers in the spec."""

    def __init__(self, modules: dict[str, nn.Module], steps: list[Step], output: int, paths: dict[str, str]) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._steps = steps
        self._output = output
        self._paths = paths
        # most graphs are a single module, which needs no slots
        self._only = steps[0].module if len(steps) == 1 and steps[0].args == [0] else None

    def forward(self, x: Tensor) -> Any:
        modules: dict[str, Any] = self._modules
        if self._only is not None:
            return modules[self._only](x)
        values: list[Any] = [x]
        for name, args, kwargs in self._steps:
            named = {key: _resolve(ref, values) for key, ref in kwargs.items()}
            values.append(modules[name](*[_resolve(ref, values) for ref in args], **named))
        return values[self._output]

    def materialize(self, example: Tensor) -> Any:
        """Give lazy layers their shapes with one pass in eval mode; an error names the layer that failed."""
        modes = [(module, module.training) for module in self.modules()]
        layers = {self.get_submodule(name): path for name, path in self._paths.items()}
        where, shapes, values = "", "", 0

        def enter(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            nonlocal where, shapes, values
            given = [*args, *kwargs.values()]
            where, shapes = layers[module], _shapes(given)
            values += _foresee(module, given)
            if values > MAX_PASS:
                raise ValueError(f"one pass makes over {MAX_PASS:,} values")

        # before the hook in which a lazy layer takes its shape, since that may fail
        hooks = [one.register_forward_pre_hook(enter, prepend=True, with_kwargs=True) for one in layers]
        try:
            self.eval()  # a batch of one passes norm layers
            with (
                torch.no_grad(),
                Budget(sum(one.numel() for one in self.parameters() if not nn.parameter.is_lazy(one))),
            ):
                return self(example)
        except MISFITS as error:
            raise SpecError(f"{where}: does not fit its input {shapes}: {first_line(error)}") from error
        finally:
            for hook in hooks:
                hook.remove()
            for module, training in modes:
                module.training = training


def build_arc(arc: object, path: str = "net.arc") -> ArcNet:
    """Build the net of an arc; `path` is the place of the arc in the spec, for messages."""
    spec = _parse(ArcSpec, arc, path)
    graph = spec.graph
    if graph is None:
        if len(spec.modules) > 1:
            raise SpecError(f"{path}: 'graph' is missing, it must say how the {len(spec.modules)} modules connect")
        only = next(iter(spec.modules))
        source = "x" if only != "x" else "input"
        graph = GraphSpec(input=source, modules={only: [source]}, output=only)
    steps, output = _build_graph(graph, list(spec.modules), f"{path}.graph")
    builder = _Builder()
    with Budget():
        modules = {name: builder.build(one, f"{path}.modules.{name}", name) for name, one in spec.modules.items()}
    try:
        return ArcNet(modules, steps, output, builder.paths)
    except KeyError as error:  # a name that torch reserves
        raise SpecError(f"{path}.modules: {error.args[0]}; choose another name") from None


def _parse(model: type[M], data: object, path: str) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(describe_first(error, model, data, path)) from None


class _Builder:
    """Builds and counts modules in all their forms; `paths` has the place of each layer in the spec."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        self.count = 0

    def build(self, spec: object, path: str, name: str) -> nn.Module:
        """One module; `name` is its place in the net."""
        self.count += 1
        if self.count > MAX_MODULES:
            raise SpecError(f"{path}: the arc has over {MAX_MODULES:,} modules")
        if isinstance(spec, str):
            spec = {spec: None}
        if not isinstance(spec, dict) or not spec:
            raise SpecError(f"{path}: must be one layer, as in {{Linear: {{in_features: 4, out_features: 2}}}}")
        if len(spec) > 1:
            raise SpecError(f"{path}: one layer per entry, got {list(spec)[:5]}; are the arguments indented under it?")
        ((kind, body),) = spec.items()
        kind = printable(str(kind))  # it may be anything, of any length
        path = f"{path}.{kind}"
        if kind == "Sequential":
            if not isinstance(body, list) or not body:
                raise SpecError(f"{path}: must be a list of at least one layer")
            return self._sequence([(item, f"{path}[{i}]") for i, item in enumerate(body)], name)
        if kind == "compact":
            return self._sequence(_expand(body, path), name)
        self.paths[name] = path
        return build_layer(kind, body, path)

    def _sequence(self, entries: list[tuple[object, str]], name: str) -> nn.Sequential:
        """Build entries, each with its path, as a sequence."""
        return nn.Sequential(*[self.build(spec, path, f"{name}.{i}") for i, (spec, path) in enumerate(entries)])


def _expand(body: object, path: str) -> list[tuple[object, str]]:
    """The entries of a compact form: prelayer, layer and postlayer for each set of arguments."""
    spec = _parse(CompactSpec, body, path)
    keys = [spec.layer.keys] if isinstance(spec.layer.keys, str) else list(dict.fromkeys(spec.layer.keys))
    before = [(item, f"{path}.prelayer[{i}]") for i, item in enumerate(spec.prelayer)]
    after = [(item, f"{path}.postlayer[{i}]") for i, item in enumerate(spec.postlayer)]
    entries = []
    for i, arg in enumerate(spec.layer.args):
        where = f"{path}.layer.args[{i}]"
        values = arg if isinstance(arg, list) else [arg]
        if len(values) != len(keys):
            raise SpecError(f"{where}: {len(values)} value(s) for {len(keys)} key(s) {keys}")
        entries += [*before, ({spec.layer.type: dict(zip(keys, values, strict=True))}, where), *after]
    return entries


def _build_graph(graph: GraphSpec, modules: list[str], path: str) -> tuple[list[Step], int]:
    """The forward pass and the slot of its output; refuses unknown names, and nodes that are never used."""
    (source,) = [graph.input] if isinstance(graph.input, str) else graph.input
    if source in modules:
        raise SpecError(f"{path}.input: {source!r} is also the name of a module; choose another")
    slots = {source: 0}
    used: set[str] = set()

    def find(item: object, where: str) -> Ref:
        if isinstance(item, list) and item:
            return [find(inner, f"{where}[{i}]") for i, inner in enumerate(item)]
        if item in graph.modules and item not in slots:
            raise SpecError(f"{where}: {item!r} is used before it is defined; nodes stand below their inputs")
        if not isinstance(item, str) or item not in slots:
            raise SpecError(f"{where}: no input or node is named {show(item)}{nearest(str(item), slots)}")
        used.add(item)
        return slots[item]

    steps = []
    for node, given in graph.modules.items():
        where, module = f"{path}.modules.{node}", node.partition("~")[0]
        if module not in modules:
            raise SpecError(f"{where}: no module is named {module!r}{nearest(module, modules)}")
        if not isinstance(given, (str, list, dict)) or not given:
            raise SpecError(f"{where}: must list the inputs of the node, as in [x]")
        named = given if isinstance(given, dict) else {}
        listed = [] if named else [given] if isinstance(given, str) else given
        args = [find(item, f"{where}[{i}]") for i, item in enumerate(listed)]
        steps.append(Step(module, args, {key: find(item, f"{where}.{key}") for key, item in named.items()}))
        slots[node] = len(slots)
    (output,) = [graph.output] if isinstance(graph.output, str) else graph.output
    find(output, f"{path}.output")
    idle = [*slots.keys() - used, *set(modules) - {step.module for step in steps}]
    if idle:
        raise SpecError(f"{path}: {sorted(idle)[0]!r} is never used, neither by a node nor as output")
    return steps, slots[output]


def _shapes(values: list[object]) -> str:
    """The shapes of the inputs of a layer, in words."""
    words = [f"of shape {tuple(v.shape)}" if isinstance(v, Tensor) else f"a {type(v).__name__}" for v in values]
    return " and ".join(words) or "(nothing)"


def _foresee(module: nn.Module, inputs: list[object]) -> int:
    """Estimate how many values a layer will compute.

    From shapes, since torch's own way (a pass on the meta device) costs seconds of imports.
    """
    flat = [item for value in inputs for item in (value if isinstance(value, list | tuple) else [value])]
    tensors = [item for item in flat if isinstance(item, Tensor)]
    values = sum(tensor.numel() for tensor in tensors)
    shape = tensors[0].shape if tensors else ()
    match module:
        case nn.Linear() | nn.Bilinear() if shape:
            return values // max(shape[-1], 1) * module.out_features
        case nn.Embedding():
            return values * module.embedding_dim
        case nn.MultiheadAttention() if len(tensors) > 1:
            rows = [tensor.numel() // module.embed_dim for tensor in tensors[:2]]
            return values + module.num_heads * rows[0] * rows[1]
        case _AdaptiveAvgPoolNd() | _AdaptiveMaxPoolNd():
            sizes = module.output_size if isinstance(module.output_size, tuple) else (module.output_size,) * 3
            return values * prod(size or 1 for size in sizes)
        case _ConvNd() if len(shape) > (dims := len(module.kernel_size)):
            # the larger of its output and its input after unfolding
            width = max(module.out_channels, shape[-dims - 1] * prod(module.kernel_size) // module.groups)
            places = prod(shape[: -dims - 1])
            for i, size in enumerate(shape[-dims:]):
                stride, reach = module.stride[i], module.dilation[i] * (module.kernel_size[i] - 1)
                padding = reach if isinstance(module.padding, str) else 2 * module.padding[i]
                places *= size * stride + reach if module.transposed else (size + padding - reach) // stride + 1
            return places * width
    # no other allowed layer has more outputs than inputs
    return values
