"""Networks written as data: modules by name, and a graph that says what feeds what."""

import inspect
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from slm_lab.agent.net.layer import MISFITS, build_layer, first_line, foresee, show, size_of
from slm_lab.lib.errors import SpecError, nearest

Inputs = Tensor | dict[str, Tensor]
Output = Tensor | list[Any] | dict[str, Any]
Ref = int | list[Any]  # the slot of a value in a forward pass, or a list of such slots

# An arc may come from a stranger's file: these keep it from taking the machine down.
MAX_MODULES = 1_000
MAX_DEPTH = 32
MAX_PARAMETERS = 1_000_000_000
MAX_PASS = 100_000_000  # values made in the pass of the example input
MAX_VALUES = 100_000  # plain values in the arc; also ends the walk through nested YAML aliases
MAX_INT = 1_000_000_000
MAX_TEXT = 200

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NODE = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(~[A-Za-z0-9_-]+)?")


class SizeError(SpecError):
    """An arc that asks for more than the lab will allocate."""


class Step(NamedTuple):
    """One call of the forward pass; its result takes the next slot."""

    module: str
    args: tuple[Ref, ...]
    kwargs: dict[str, Ref]


class Graph(NamedTuple):
    """The forward pass: inputs take the first slots, then each step one more."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    output: Ref | dict[str, Ref]


def _resolve(ref: Ref, values: list[Any]) -> Any:
    """The value, or list of values, behind a reference."""
    return values[ref] if isinstance(ref, int) else [_resolve(item, values) for item in ref]


class ArcNet(nn.Module):
    """A net that runs its graph step by step; the inputs come in graph order, or as one dict by name."""

    def __init__(self, modules: dict[str, nn.Module], graph: Graph, paths: dict[str, str]) -> None:
        super().__init__()
        self.input_names = graph.inputs
        for name, module in modules.items():
            self.add_module(name, module)
        self._graph = graph
        self._paths = paths
        # One input into one module is by far the commonest graph and needs no slots.
        plain = len(graph.steps) == 1 and graph.steps[0].args == (0,) and graph.output == 1
        self._only = graph.steps[0].module if plain and len(graph.inputs) == 1 else None

    def forward(self, *inputs: Inputs) -> Output:
        modules: dict[str, Any] = self._modules
        if len(inputs) == 1 and isinstance(inputs[0], dict):
            inputs = self._by_name(inputs[0])
        if len(inputs) != len(self.input_names):
            raise TypeError(f"takes {len(self.input_names)} input(s) {list(self.input_names)}, got {len(inputs)}")
        if self._only is not None:
            return modules[self._only](inputs[0])
        _, steps, output = self._graph
        values: list[Any] = list(inputs)
        for name, args, kwargs in steps:
            named = {key: _resolve(ref, values) for key, ref in kwargs.items()}
            values.append(modules[name](*[_resolve(ref, values) for ref in args], **named))
        if isinstance(output, dict):
            return {key: _resolve(ref, values) for key, ref in output.items()}
        return _resolve(output, values)

    def _by_name(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Named inputs in graph order."""
        if inputs.keys() != set(self.input_names):
            raise TypeError(f"takes the inputs {list(self.input_names)}, got {list(inputs)}")
        return tuple(inputs[name] for name in self.input_names)


def build_arc(arc: dict[str, Any], path: str = "net.arc") -> ArcNet:
    """The net an arc describes; `path` is where the arc sits in the spec, for messages."""
    _check_plain(arc, path, depth=0, count=[0])
    _only_keys(arc, path, ("modules", "graph"), required=("modules",))
    specs = arc["modules"]
    if not isinstance(specs, dict) or not specs:
        raise SpecError(f"{path}.modules: must map a name to a layer, at least one")
    for name in specs:
        _check_name(name, f"{path}.modules.{name}")
    graph_spec = arc.get("graph")
    if graph_spec is None:
        if len(specs) > 1:
            raise SpecError(f"{path}: 'graph' is missing, it must say how the {len(specs)} modules connect")
        only = next(iter(specs))
        source = "x" if only != "x" else "input"
        graph_spec = {"input": source, "modules": {only: [source]}, "output": only}
    graph = _GraphBuilder(graph_spec, list(specs), f"{path}.graph").build()
    # The meta device has shapes but no memory: a net too big is refused before it is allocated.
    with torch.device("meta"), _NoFill():
        _ModuleBuilder(path).build(specs)
    builder = _ModuleBuilder(path)
    modules = builder.build(specs)
    _check_keywords(graph_spec["modules"], modules, f"{path}.graph.modules")
    return ArcNet(modules, graph, builder.paths)


def materialize(net: nn.Module, *example_inputs: Inputs) -> Output:
    """Give lazy layers their shapes with one pass in eval mode; the net's own modes stay."""
    output = _run(net, example_inputs)
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise SpecError(f"{_path_of(name, _paths(net))}: no input reaches this lazy layer, its shape is unknown")
    return output


@contextmanager
def _eval_mode(net: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for a while, so that a batch of one passes norm layers."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        net.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _run(net: nn.Module, inputs: tuple[Inputs, ...]) -> Output:
    """One forward pass that names the layer where it fails, and stops before a layer too big for the machine."""
    names = {module: name for name, module in net.named_modules()}
    paths = _paths(net)
    where, shapes = paths[""], ""
    parameters, values = size_of(net), 0

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal where, shapes, parameters, values
        where = _path_of(names[module], paths)
        given = [*args, *kwargs.values()]
        shapes = _shapes(given)
        # A container makes nothing of its own; attention does, around a projection it holds.
        if next(module.children(), None) is not None and not isinstance(module, nn.MultiheadAttention):
            return
        new_parameters, new_values = foresee(module, given)
        parameters += new_parameters
        values += new_values
        if parameters > MAX_PARAMETERS:
            raise SizeError(
                f"{where}: the net reaches {parameters:,} parameters, at most {MAX_PARAMETERS:,} are allowed"
            )
        if values > MAX_PASS:
            raise SizeError(f"{where}: one pass makes {values:,} values, at most {MAX_PASS:,} are allowed")

    # First in line: a lazy layer takes its shape in a hook of its own, which may be what fails.
    hooks = [module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True) for module in names]
    try:
        with _eval_mode(net):
            return net(*inputs)
    except MISFITS as error:
        raise SpecError(f"{where}: does not fit its input {shapes}: {first_line(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()


def _shapes(values: list[Any]) -> str:
    """The shapes a layer was given."""
    words = [f"of shape {tuple(v.shape)}" if isinstance(v, Tensor) else f"a {type(v).__name__}" for v in values]
    return " and ".join(words) or "(nothing)"


def _paths(net: nn.Module) -> dict[str, str]:
    """Where in the spec each submodule was written."""
    table = {"": type(net).__name__}
    for prefix, module in net.named_modules():
        if isinstance(module, ArcNet):
            table |= {f"{prefix}.{name}".strip("."): path for name, path in module._paths.items()}
    return table


def _path_of(name: str, paths: dict[str, str]) -> str:
    """The path of a submodule, or of the nearest one around it that the spec names."""
    parts = name.split(".")
    while ".".join(parts) not in paths:
        parts.pop()
    return paths[".".join(parts)]


def _check_plain(value: Any, path: str, depth: int, count: list[int]) -> None:
    """Refuse anything but plain data of sane size, without calling into the values."""
    count[0] += 1
    if count[0] > MAX_VALUES:
        raise SizeError(f"{path}: the arc holds over {MAX_VALUES:,} values")
    if depth > MAX_DEPTH:
        raise SizeError(f"{path[:MAX_TEXT]}...: nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or len(key) > MAX_TEXT:
                raise SpecError(f"{path}: a key must be text of up to {MAX_TEXT} characters, got {type(key).__name__}")
            _check_plain(item, f"{path}.{key}", depth + 1, count)
    elif kind in (list, tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{path}[{index}]", depth + 1, count)
    elif kind is int and abs(value) > MAX_INT:
        raise SizeError(f"{path}: a number over {MAX_INT:,} is not allowed")
    elif kind is float and not math.isfinite(value):
        raise SpecError(f"{path}: must be a finite number")
    elif kind is str and len(value) > MAX_TEXT:
        raise SpecError(f"{path}: text is longer than {MAX_TEXT} characters")
    elif kind not in (int, float, str, bool, type(None)):
        raise SpecError(f"{path}: must be plain data (text, number, true/false, list, mapping), got {kind.__name__}")


def _only_keys(spec: Any, path: str, allowed: tuple[str, ...], required: tuple[str, ...]) -> None:
    """Refuse what is not a mapping, an unknown key or a missing one."""
    if not isinstance(spec, dict):
        raise SpecError(f"{path}: must be a mapping with {', '.join(allowed)}")
    for key in spec:
        if key not in allowed:
            raise SpecError(f"{path}: unknown key {key!r}, allowed are {', '.join(allowed)}{nearest(key, allowed)}")
    for key in required:
        if spec.get(key) is None:
            raise SpecError(f"{path}: '{key}' is missing")


def _check_name(name: str, path: str) -> None:
    """Refuse a module name that torch could not hold."""
    if not _NAME.fullmatch(name):
        raise SpecError(f"{path}: a module name is a letter, then letters, digits, '_' or '-', got {name!r}")
    if name in _RESERVED:
        raise SpecError(f"{path}: {name!r} is a name torch keeps for itself, choose another")


def _check_keywords(nodes: dict[str, Any], modules: dict[str, nn.Module], path: str) -> None:
    """Refuse a keyword input that the module's forward does not take."""
    for node, args in nodes.items():
        if not isinstance(args, dict):
            continue
        module = modules[node.partition("~")[0]]
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        takes = [p.name for p in inspect.signature(module.forward).parameters.values() if p.kind in kinds]
        for key in args:
            if key not in takes:
                kind = type(module).__name__
                raise SpecError(f"{path}.{node}: {kind} takes no input named {key!r}{nearest(key, takes)}")


_RESERVED = frozenset(dir(ArcNet)) | frozenset(vars(nn.Module())) | {"input_names"}


class _NoFill(TorchFunctionMode):
    """Leaves out normal initialisation, for which the meta device imports torch's compiler, taking seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ == "normal_":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


class _ModuleBuilder:
    """Builds the modules of an arc, counting as it goes."""

    def __init__(self, path: str) -> None:
        self.paths = {"": path}
        self.root = f"{path}.modules"
        self.modules = 0
        self.size = 0

    def build(self, specs: dict[str, Any]) -> dict[str, nn.Module]:
        """All modules by name."""
        return {name: self._module(spec, f"{self.root}.{name}", name) for name, spec in specs.items()}

    def _module(self, spec: Any, path: str, name: str) -> nn.Module:
        """One module in any of its forms; `name` is its place in the net."""
        kind, body = self._entry(spec, path)
        path = f"{path}.{kind}"
        self.paths[name] = path
        self.modules += 1
        if self.modules > MAX_MODULES:
            raise SizeError(f"{path}: the arc has over {MAX_MODULES:,} modules")
        if kind == "Sequential":
            return self._sequence([(item, f"{path}[{i}]") for i, item in enumerate(self._items(body, path))], name)
        if kind == "compact":
            return self._sequence(self._expand(body, path), name)
        layer = build_layer(kind, body, path)
        self.size += size_of(layer)
        if self.size > MAX_PARAMETERS:
            raise SizeError(f"{path}: the arc reaches {self.size:,} parameters, at most {MAX_PARAMETERS:,} are allowed")
        return layer

    def _sequence(self, entries: list[tuple[Any, str]], name: str) -> nn.Sequential:
        """Entries, each with its path, one after the other."""
        return nn.Sequential(*[self._module(spec, path, f"{name}.{i}") for i, (spec, path) in enumerate(entries)])

    def _entry(self, spec: Any, path: str) -> tuple[str, Any]:
        """The class name and the arguments of an entry."""
        if isinstance(spec, str):
            return spec, None
        if not isinstance(spec, dict) or not spec:
            raise SpecError(f"{path}: must be one layer, as in {{Linear: {{in_features: 4, out_features: 2}}}}")
        if len(spec) > 1:
            raise SpecError(f"{path}: one layer per entry, got {list(spec)[:5]}; are the arguments indented under it?")
        return next(iter(spec.items()))

    def _items(self, body: Any, path: str) -> list[Any]:
        """A list with something in it."""
        if not isinstance(body, list | tuple) or not body:
            raise SpecError(f"{path}: must be a list of at least one item")
        return list(body)

    def _expand(self, body: Any, path: str) -> list[tuple[Any, str]]:
        """The entries a compact form stands for: pre, layer, post for each set of arguments."""
        _only_keys(body, path, ("prelayer", "layer", "postlayer"), required=("layer",))
        layer, where = body["layer"], f"{path}.layer"
        _only_keys(layer, where, ("type", "keys", "args"), required=("type", "keys", "args"))
        if not isinstance(layer["type"], str):
            raise SpecError(f"{where}.type: must be the name of a layer")
        keys = [layer["keys"]] if isinstance(layer["keys"], str) else self._items(layer["keys"], f"{where}.keys")
        if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
            raise SpecError(f"{where}.keys: must be argument names, each once")
        around = {}
        for side in ("prelayer", "postlayer"):
            listed = self._items(body[side], f"{path}.{side}") if body.get(side) else []
            around[side] = [(item, f"{path}.{side}[{i}]") for i, item in enumerate(listed)]
        entries = []
        for i, arg in enumerate(self._items(layer["args"], f"{where}.args")):
            values = arg if isinstance(arg, list | tuple) else [arg]
            if len(values) != len(keys):
                raise SpecError(f"{where}.args[{i}]: {len(values)} value(s) for {len(keys)} key(s) {keys}")
            spec = {layer["type"]: dict(zip(keys, values, strict=True))}
            entries += [*around["prelayer"], (spec, f"{where}.args[{i}]"), *around["postlayer"]]
            if len(entries) > MAX_MODULES:
                raise SizeError(f"{path}: the arc has over {MAX_MODULES:,} modules")
        return entries


class _GraphBuilder:
    """Turns the graph of names into slots, refusing any name that leads nowhere."""

    def __init__(self, spec: Any, modules: list[str], path: str) -> None:
        _only_keys(spec, path, ("input", "modules", "output"), required=("input", "modules", "output"))
        self.spec = spec
        self.modules = modules
        self.path = path
        self.slots: dict[str, int] = {}
        self.used: set[str] = set()

    def build(self) -> Graph:
        """The checked forward pass."""
        inputs = self._inputs()
        nodes = self.spec["modules"]
        if not isinstance(nodes, dict) or not nodes:
            raise SpecError(f"{self.path}.modules: must map each node to its inputs, at least one")
        if len(nodes) > MAX_MODULES:
            raise SizeError(f"{self.path}.modules: over {MAX_MODULES:,} nodes")
        steps = []
        for node, args in nodes.items():
            steps.append(self._step(node, args))
            self.slots[node] = len(self.slots)
        output = self.spec["output"]
        where = f"{self.path}.output"
        if isinstance(output, dict):
            if not output:
                raise SpecError(f"{where}: must name at least one node")
            refs: Ref | dict[str, Ref] = {key: self._ref(item, f"{where}.{key}") for key, item in output.items()}
        else:
            refs = self._ref(output, where)
        self._check_used(nodes)
        return Graph(inputs, tuple(steps), refs)

    def _inputs(self) -> tuple[str, ...]:
        """The input names; they take the first slots."""
        given = self.spec["input"]
        where = f"{self.path}.input"
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list | tuple) or not names:
            raise SpecError(f"{where}: must be a name or a list of names")
        for name in names:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise SpecError(
                    f"{where}: an input name is a letter, then letters, digits, '_' or '-', got {show(name)}"
                )
            if name in self.slots or name in self.modules:
                raise SpecError(f"{where}: duplicate name {name!r}; inputs and modules need names of their own")
            self.slots[name] = len(self.slots)
        return tuple(names)

    def _step(self, node: str, args: Any) -> Step:
        """One node as a call."""
        where = f"{self.path}.modules.{node}"
        if not _NODE.fullmatch(node):
            raise SpecError(f"{where}: a node is a module's name, or name~tag to use the module again")
        module = node.partition("~")[0]
        if module not in self.modules:
            raise SpecError(f"{where}: no module is named {module!r}{nearest(module, self.modules)}")
        if isinstance(args, dict) and args:
            return Step(module, (), {key: self._ref(item, f"{where}.{key}", node) for key, item in args.items()})
        listed = [args] if isinstance(args, str) else args
        if not isinstance(listed, list | tuple) or not listed:
            raise SpecError(f"{where}: must list the inputs of the node, as in [x]")
        return Step(module, tuple(self._ref(item, f"{where}[{i}]", node) for i, item in enumerate(listed)), {})

    def _ref(self, item: Any, path: str, node: str | None = None) -> Ref:
        """The slot of a name, or a list of slots."""
        if isinstance(item, list | tuple) and item:
            return [self._ref(inner, f"{path}[{i}]", node) for i, inner in enumerate(item)]
        if not isinstance(item, str):
            raise SpecError(f"{path}: must be the name of an input or a node, got {show(item)}")
        if item in self.slots:
            self.used.add(item)
            return self.slots[item]
        if node is not None and item in self.spec["modules"]:
            if node in self._feeds(item):
                raise SpecError(f"{path}: a cycle, {node!r} feeds on {item!r} and {item!r} on {node!r}")
            raise SpecError(f"{path}: {item!r} is used before it is defined; write it above {node!r}")
        raise SpecError(f"{path}: no input or node is named {item!r}{nearest(item, self.slots)}")

    def _feeds(self, node: str) -> set[str]:
        """The node and every name it depends on."""
        found: set[str] = set()
        pending: list[Any] = [node]
        while pending:
            item = pending.pop()
            if isinstance(item, list | tuple):
                pending.extend(item)
            elif isinstance(item, dict):
                pending.extend(item.values())
            elif isinstance(item, str) and item not in found:
                found.add(item)
                pending.append(self.spec["modules"].get(item))
        return found

    def _check_used(self, nodes: dict[str, Any]) -> None:
        """Refuse modules, nodes and inputs that change nothing in the output."""
        called = {node.partition("~")[0] for node in nodes}
        for module in self.modules:
            if module not in called:
                raise SpecError(f"{self.path}.modules: module {module!r} is never used")
        for name in self.slots:
            if name not in self.used:
                raise SpecError(f"{self.path}: {name!r} is never used, neither by a node nor as output")
