"""Arcs build what they say, and say what is wrong when they cannot."""

import copy
import io
import os
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.net.arc import MAX_MODULES, ArcNet, build_arc, materialize
from slm_lab.agent.net.layer import LAYERS, foresee
from slm_lab.lib.errors import SpecError

TWO_INPUTS: dict[str, Any] = {
    "modules": {
        "left": {"Linear": {"in_features": 2, "out_features": 3}},
        "right": {"Linear": {"in_features": 4, "out_features": 5}},
        "merge": {"Concat": None},
        "head": {"Linear": {"in_features": 8, "out_features": 1}},
    },
    "graph": {
        "input": ["state", "action"],
        "modules": {"left": ["state"], "right": ["action"], "merge": ["left", "right"], "head": ["merge"]},
        "output": "head",
    },
}


def one(spec: Any) -> dict[str, Any]:
    """An arc of one module, `body`."""
    return {"modules": {"body": spec}}


def linear(n_in: int, n_out: int) -> dict[str, Any]:
    return {"Linear": {"in_features": n_in, "out_features": n_out}}


def refused(arc: Any) -> str:
    """The one-line message an arc is refused with."""
    with pytest.raises(SpecError) as caught:
        build_arc(arc)
    message = str(caught.value)
    assert "\n" not in message
    return message


def n_params(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


# Forms


def test_single_layer_and_text_layer() -> None:
    net = build_arc(one(linear(3, 2)))
    assert net.input_names == ("x",)
    assert n_params(net) == 3 * 2 + 2
    assert build_arc(one("Tanh"))(torch.zeros(1, 3)).shape == (1, 3)
    assert build_arc(one({"Tanh": None}))(torch.zeros(1, 3)).shape == (1, 3)


def test_sequential_equals_handmade() -> None:
    arc = {
        "modules": {"body": {"Sequential": [linear(4, 8), {"Tanh": None}, "ReLU", linear(8, 2)]}},
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
    }
    torch.manual_seed(0)
    net = build_arc(arc)
    torch.manual_seed(0)
    hand = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(5, 4)
    # The size check before the build must not use up random numbers.
    assert torch.equal(net(x), hand(x))
    assert list(net.state_dict()) == [f"body.{key}" for key in hand.state_dict()]
    assert net.body[0].weight.device.type == "cpu"


def test_nested_sequential() -> None:
    net = build_arc(one({"Sequential": [{"Sequential": [linear(2, 3), "Tanh"]}, linear(3, 1)]}))
    assert net(torch.zeros(7, 2)).shape == (7, 1)


def test_compact_expands() -> None:
    compact = {
        "prelayer": [{"Dropout": {"p": 0.25}}],
        "layer": {"type": "Linear", "keys": ["in_features", "out_features"], "args": [[4, 8], [8, 2]]},
        "postlayer": [{"LeakyReLU": {"negative_slope": 0.1}}, "Identity"],
    }
    body = build_arc(one({"compact": compact})).body
    names = ["Dropout", "Linear", "LeakyReLU", "Identity"]
    assert [type(layer).__name__ for layer in body] == names * 2
    assert [(layer.in_features, layer.out_features) for layer in body if isinstance(layer, nn.Linear)] == [
        (4, 8),
        (8, 2),
    ]
    assert body[0].p == 0.25
    assert body[2].negative_slope == 0.1
    assert body[0] is not body[4]


@pytest.mark.parametrize("args", [[8, 2], [[8], [2]]])
@pytest.mark.parametrize("keys", ["out_features", ["out_features"]])
def test_compact_single_key(keys: Any, args: list[Any]) -> None:
    net = build_arc(one({"compact": {"layer": {"type": "LazyLinear", "keys": keys, "args": args}}}))
    assert [layer.out_features for layer in net.body] == [8, 2]


def test_lists_become_the_tuples_torch_wants() -> None:
    seq = [
        {"Unflatten": {"dim": 1, "unflattened_size": [1, 4, 4]}},
        {"Conv2d": {"in_channels": 1, "out_channels": 2, "kernel_size": [3, 3], "padding": "same"}},
        {"AdaptiveAvgPool2d": {"output_size": [2, None]}},
        {"LayerNorm": {"normalized_shape": [2, 2, 4]}},
    ]
    assert build_arc(one({"Sequential": seq}))(torch.zeros(3, 16)).shape == (3, 2, 2, 4)


# Graphs


def test_two_inputs_with_concat() -> None:
    net = build_arc(TWO_INPUTS)
    state, action = torch.randn(6, 2), torch.randn(6, 4)
    by_hand = net.head(torch.cat([net.left(state), net.right(action)], dim=-1))
    assert net.input_names == ("state", "action")
    assert torch.equal(net(state, action), by_hand)
    assert torch.equal(net({"action": action, "state": state}), by_hand)


def test_wrong_inputs_are_named() -> None:
    net = build_arc(TWO_INPUTS)
    with pytest.raises(TypeError, match="takes 2 input"):
        net(torch.zeros(1, 2))
    with pytest.raises(TypeError, match="got \\['state', 'act'\\]"):
        net({"state": torch.zeros(1, 2), "act": torch.zeros(1, 4)})


def test_nested_list_is_passed_as_a_list() -> None:
    arc = copy.deepcopy(TWO_INPUTS)
    arc["graph"]["modules"]["merge"] = [["left", "right"]]
    net = build_arc(arc)
    assert net(torch.zeros(1, 2), torch.zeros(1, 4)).shape == (1, 1)


def test_keyword_inputs() -> None:
    arc: dict[str, Any] = {
        "modules": {
            "attend": {"MultiheadAttention": {"embed_dim": 4, "num_heads": 2, "batch_first": True}},
            "pick": {"Get": {"key": 0}},
        },
        "graph": {
            "input": "x",
            "modules": {"attend": {"query": "x", "key": "x", "value": "x"}, "pick": ["attend"]},
            "output": "pick",
        },
    }
    net = build_arc(arc)
    x = torch.randn(2, 3, 4)
    assert torch.equal(net(x), net.attend(x, x, x)[0])
    arc["graph"]["modules"]["attend"] = {"quary": "x", "key": "x", "value": "x"}
    message = "graph.modules.attend: MultiheadAttention takes no input named 'quary'; did you mean 'query'?"
    assert message in refused(arc)


@pytest.mark.parametrize(
    ("output", "keys"),
    [(["a", "b"], [0, 1]), ({"mean": "a", "std": "b"}, ["mean", "std"]), ([["a"], "b"], None)],
)
def test_output_forms(output: Any, keys: list[Any] | None) -> None:
    arc = {
        "modules": {"a": linear(2, 1), "b": linear(2, 3)},
        "graph": {"input": "x", "modules": {"a": ["x"], "b": ["x"]}, "output": output},
    }
    net = build_arc(arc)
    x = torch.randn(4, 2)
    result = net(x)
    assert type(result) is type(output)
    if keys is None:
        assert torch.equal(result[0][0], net.a(x))
    else:
        assert torch.equal(result[keys[0]], net.a(x))
        assert torch.equal(result[keys[1]], net.b(x))


def test_reuse_shares_weights_and_gradient() -> None:
    arc = {
        "modules": {"enc": {"Linear": {"in_features": 1, "out_features": 1, "bias": False}}, "sum": "Add"},
        "graph": {
            "input": ["a", "b"],
            "modules": {"enc": ["a"], "enc~b": ["b"], "sum": ["enc", "enc~b"]},
            "output": "sum",
        },
    }
    net = build_arc(arc)
    assert n_params(net) == 1
    # d(w*2 + w*5)/dw = 7: both uses reach the one weight.
    net(torch.tensor([[2.0]]), torch.tensor([[5.0]])).backward()
    assert net.enc.weight.grad.item() == 7.0


@pytest.mark.parametrize(
    ("name", "kwargs", "expected"),
    [
        ("Add", None, [[5.0, 7.0]]),
        ("Multiply", None, [[4.0, 10.0]]),
        ("Subtract", None, [[-3.0, -3.0]]),
        ("Concat", {"dim": 1}, [[1.0, 2.0, 4.0, 5.0]]),
        ("Stack", {"dim": 1}, [[[1.0, 2.0], [4.0, 5.0]]]),
    ],
)
def test_merge_layers(name: str, kwargs: Any, expected: list[Any]) -> None:
    graph = {"input": ["a", "b"], "modules": {"merge": ["a", "b"]}, "output": "merge"}
    net = build_arc({"modules": {"merge": {name: kwargs}}, "graph": graph})
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 5.0]])
    assert net(a, b).tolist() == expected
    if name in ("Add", "Multiply", "Subtract"):
        # (B, 1) with (B,) must not broadcast to (B, B).
        for other in (torch.zeros(3), torch.zeros(1, 3)):
            with pytest.raises(SpecError, match="do not match by element"):
                materialize(net, torch.zeros(3, 1), other)
        assert net(torch.zeros(3, 1), torch.zeros(3, 4)).shape == (3, 4)


@pytest.mark.parametrize("cut", [{"Split": {"split_size": [1, 2]}}, {"Chunk": {"chunks": 2}}])
def test_cut_and_get(cut: dict[str, Any]) -> None:
    arc: dict[str, Any] = {"modules": {"cut": cut, "second": {"Get": {"key": 1}}}}
    arc["graph"] = {"input": "x", "modules": {"cut": ["x"], "second": ["cut"]}, "output": "second"}
    x = torch.tensor([[1.0, 2.0, 3.0]])
    assert build_arc(arc)(x).tolist() == ([[2.0, 3.0]] if "Split" in cut else [[3.0]])


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ({"Reshape": {"shape": [3, 2]}}, (5, 3, 2)),
        ({"Unsqueeze": {"dim": 1}}, (5, 1, 6)),
        ({"Permute": {"dims": [1, 0]}}, (6, 5)),
        ({"Mean": {"dim": 1, "keepdim": True}}, (5, 1)),
        ({"Sequential": ["Mean", "Unsqueeze", "Squeeze"]}, (5,)),
    ],
)
def test_shape_layers(spec: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert build_arc(one(spec))(torch.zeros(5, 6)).shape == shape


def test_copies_and_saved_nets_run() -> None:
    net = build_arc(TWO_INPUTS)
    inputs = torch.randn(2, 2), torch.randn(2, 4)
    twin = copy.deepcopy(net)
    assert torch.equal(twin(*inputs), net(*inputs))
    with torch.no_grad():
        twin.left.weight.zero_()
    assert not torch.equal(twin(*inputs), net(*inputs))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(*inputs), net(*inputs))


def test_registered_layer_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scale(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    monkeypatch.setitem(LAYERS, "Scale", Scale)
    assert build_arc(one({"Scale": {"factor": 3}}))(torch.ones(1)).item() == 3.0
    assert refused(one({"Scale": {"facto": 3}})).endswith("did you mean 'factor'?")


# Lazy layers


def test_materialize_lazy_conv_net() -> None:
    seq = [
        {"LazyConv2d": {"out_channels": 8, "kernel_size": 3}},
        {"LazyBatchNorm2d": None},
        "ReLU",
        "Flatten",
        {"LazyLinear": {"out_features": 5}},
        {"LazyBatchNorm1d": None},
    ]
    torch.manual_seed(1)
    net = build_arc(one({"Sequential": seq}))
    net.body[2].eval()
    output = materialize(net, torch.zeros(1, 3, 6, 6))
    assert isinstance(output, Tensor)
    assert output.shape == (1, 5)
    assert not output.requires_grad
    assert net.body[0].weight.shape == (8, 3, 3, 3)
    assert net.body[4].in_features == 8 * 4 * 4
    # Modes stay as they were, and the dummy batch leaves no trace in the statistics.
    assert net.training
    assert not net.body[2].training
    assert net.body[1].num_batches_tracked == 0
    assert net.body[1].running_mean.tolist() == [0.0] * 8
    assert all(p.requires_grad and p.device.type == "cpu" for p in net.parameters())
    x = torch.randn(2, 3, 6, 6)
    torch.manual_seed(1)
    hand = nn.Sequential(
        nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5), nn.LazyBatchNorm1d()
    ).eval()
    expected = hand(x)
    assert torch.equal(net.eval()(x), expected)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_materialize_works_on_a_net_around_an_arc() -> None:
    body = build_arc(one({"Sequential": [{"LazyLinear": {"out_features": 4}}, "Tanh"]}))
    output = materialize(nn.Sequential(body, nn.LazyLinear(2)), torch.zeros(1, 3))
    assert isinstance(output, Tensor)
    assert output.shape == (1, 2)
    with pytest.raises(SpecError, match=r"^net\.arc\.modules\.body\.Sequential\[0\]\.LazyLinear: does not fit"):
        materialize(nn.Sequential(nn.Linear(3, 9), body), torch.zeros(1, 3))


def test_shape_misfit_names_the_layer() -> None:
    net = build_arc(one({"Sequential": [{"LazyLinear": {"out_features": 4}}, "Tanh", linear(5, 1)]}))
    with pytest.raises(SpecError) as caught:
        materialize(net, torch.zeros(1, 3))
    assert str(caught.value).startswith(
        "net.arc.modules.body.Sequential[2].Linear: does not fit its input of shape (1, 4): "
    )
    assert net.training


def test_misfit_inside_compact_and_lazy_hook() -> None:
    layer = {"type": "LazyConv2d", "keys": ["out_channels", "kernel_size"], "args": [[4, 3], [4, 9]]}
    net = build_arc(one({"compact": {"layer": layer, "postlayer": ["ReLU"]}}))
    with pytest.raises(SpecError, match=r"compact\.layer\.args\[1\]\.LazyConv2d: does not fit .*\(1, 4, 4, 4\)"):
        materialize(net, torch.zeros(1, 1, 6, 6))
    net = build_arc(one({"LazyConv2d": {"out_channels": 4, "kernel_size": 3}}))
    with pytest.raises(SpecError, match=r"body\.LazyConv2d: does not fit .*\(1, 6\)"):
        materialize(net, torch.zeros(1, 6))


def test_missing_lazy_shape() -> None:
    net = build_arc(one({"LazyLinear": {"out_features": 4}}))
    with pytest.raises(SpecError, match=r"^net\.arc: .*takes 1 input"):
        materialize(net)

    class Detour(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.LazyLinear(2)

        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(SpecError, match="Detour: no input reaches this lazy layer"):
        materialize(Detour(), torch.zeros(1, 3))


def test_path_prefix_of_messages() -> None:
    with pytest.raises(SpecError, match=r"^critic\.net\.arc\.modules\.body\.Tan"):
        build_arc(one("Tan"), path="critic.net.arc")


# Mistakes


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"Sequential": ["ReLU", "ReLU", {"LazyLinea": {"out_features": 4}}]},
            "Sequential[2].LazyLinea: unknown layer 'LazyLinea'; did you mean 'LazyLinear'?",
        ),
        ({"sequential": ["ReLU"]}, "sequential: unknown layer 'sequential'; did you mean 'Sequential'?"),
        (
            {"LazyLinear": {"out_feature": 4}},
            "LazyLinear: LazyLinear has no argument 'out_feature', it takes out_features, bias;"
            " did you mean 'out_features'?",
        ),
        ({"Tanh": {"alpha": 1}}, "Tanh: Tanh has no argument 'alpha', it takes none"),
        ({"Identity": {"alpha": 1}}, "Identity: Identity has no argument 'alpha', it takes none"),
        ({"Linear": {"in_features": 4}}, "Linear: argument 'out_features' is missing"),
        (
            {"Linear": {"out_features": 4}},
            "Linear: argument 'in_features' is missing; LazyLinear reads it from the data",
        ),
        ({"LazyLinear": {"out_features": "64"}}, "LazyLinear.out_features: must be int, got '64' (write a number"),
        ({"LazyLinear": {"out_features": 64.0}}, "LazyLinear.out_features: must be int, got 64.0"),
        ({"LazyLinear": {"out_features": True}}, "LazyLinear.out_features: must be int, got True"),
        ({"LazyLinear": {"out_features": [64]}}, "LazyLinear.out_features: must be int, got [64]"),
        ({"LazyLinear": {"out_features": 4, "bias": 1}}, "LazyLinear.bias: must be true or false, got 1"),
        ({"LazyLinear": {"out_features": 0}}, "LazyLinear.out_features: must be 1 or more, got 0"),
        ({"LazyBatchNorm1d": {"eps": "1e-5"}}, "LazyBatchNorm1d.eps: must be a number, got '1e-5' (write a number"),
        (
            {"LazyConv2d": {"out_channels": 4, "kernel_size": [3, 3, 3]}},
            "kernel_size: must be int or a list of 2 int, got [3, 3, 3]",
        ),
        (
            {"LazyConv2d": {"out_channels": 4, "kernel_size": 3, "padding_mode": "zero"}},
            "padding_mode: must be one of 'zeros', 'reflect', 'replicate', 'circular', got 'zero'; did you mean",
        ),
        ({"Dropout": {"p": 1.5}}, "Dropout: dropout probability has to be between 0 and 1"),
        ({"Linear": [4, 2]}, "Linear: arguments must be a mapping of name to value, got [4, 2]"),
        ({"Sequential": []}, "Sequential: must be a list of at least one item"),
        ({"Sequential": {"Linear": None}}, "Sequential: must be a list of at least one item"),
        (
            {"Sequential": [{"LazyLinear": None, "out_features": 4}]},
            "Sequential[0]: one layer per entry, got ['LazyLinear', 'out_features']; are the arguments indented",
        ),
        ({}, "body: must be one layer"),
        (None, "body: must be one layer"),
        ({"compact": {"layers": {}}}, "compact: unknown key 'layers', allowed are"),
        ({"compact": {"postlayer": ["ReLU"]}}, "compact: 'layer' is missing"),
        ({"compact": {"layer": {"type": "LazyLinear", "keys": ["out_features"]}}}, "compact.layer: 'args' is missing"),
        (
            {"compact": {"layer": {"type": "LazyLinear", "keys": ["out_features", "bias"], "args": [[8]]}}},
            "compact.layer.args[0]: 1 value(s) for 2 key(s) ['out_features', 'bias']",
        ),
        (
            {"compact": {"layer": {"type": "LazyLinear", "keys": ["out_features"] * 2, "args": [[8, 8]]}}},
            "compact.layer.keys: must be argument names, each once",
        ),
        (
            {"compact": {"layer": {"type": "LazyLinea", "keys": ["out_features"], "args": [8]}}},
            "compact.layer.args[0].LazyLinea: unknown layer 'LazyLinea'; did you mean",
        ),
        (
            {"compact": {"layer": {"type": "LazyLinear", "keys": "out_features", "args": [8]}, "postlayer": ["Relu"]}},
            "compact.postlayer[0].Relu: unknown layer 'Relu'; did you mean 'ReLU'?",
        ),
    ],
)
def test_module_mistakes(spec: Any, message: str) -> None:
    text = refused(one(spec))
    assert text.startswith("net.arc.modules.body")
    assert message in text


def graph(**changes: Any) -> dict[str, Any]:
    """Two modules in a row, with parts of the graph replaced (None takes a part out)."""
    parts = {"input": "x", "modules": {"body": ["x"], "head": ["body"]}, "output": "head"} | changes
    return {
        "modules": {"body": linear(2, 2), "head": linear(2, 2)},
        "graph": {key: value for key, value in parts.items() if value is not None},
    }


@pytest.mark.parametrize(
    ("arc", "message"),
    [
        ([], "net.arc: must be a mapping with modules, graph"),
        ({}, "net.arc: 'modules' is missing"),
        ({"modules": {}}, "net.arc.modules: must map a name to a layer"),
        ({"module": {}}, "net.arc: unknown key 'module', allowed are modules, graph; did you mean 'modules'?"),
        ({"modules": graph()["modules"]}, "net.arc: 'graph' is missing, it must say how the 2 modules connect"),
        (graph(output=None), "net.arc.graph: 'output' is missing"),
        (graph(input=None), "net.arc.graph: 'input' is missing"),
        (graph(modules=None), "net.arc.graph: 'modules' is missing"),
        (graph(outputs="head"), "net.arc.graph: unknown key 'outputs'"),
        (graph(output="haed"), "net.arc.graph.output: no input or node is named 'haed'; did you mean 'head'?"),
        (graph(output=["head", 3]), "net.arc.graph.output[1]: must be the name of an input or a node, got 3"),
        (graph(output={}), "net.arc.graph.output: must name at least one node"),
        (graph(output=[]), "net.arc.graph.output: must be the name"),
        (
            graph(modules={"body": ["x"], "head": ["bdoy"]}),
            "net.arc.graph.modules.head[0]: no input or node is named 'bdoy'; did you mean 'body'?",
        ),
        (
            graph(modules={"body": ["x"], "haed": ["body"]}),
            "net.arc.graph.modules.haed: no module is named 'haed'; did you mean 'head'?",
        ),
        (
            graph(modules={"head": ["body"], "body": ["x"]}),
            "net.arc.graph.modules.head[0]: 'body' is used before it is defined; write it above 'head'",
        ),
        (graph(modules={"body": [["x", "head"]], "head": ["body"]}), "net.arc.graph.modules.body[0][1]: a cycle"),
        (graph(modules={"body": ["body"], "head": ["body"]}), "net.arc.graph.modules.body[0]: a cycle"),
        (graph(modules={"body": ["x"]}, output="body"), "net.arc.graph.modules: module 'head' is never used"),
        (graph(output="body"), "net.arc.graph: 'head' is never used"),
        (graph(input=["x", "y"]), "net.arc.graph: 'y' is never used"),
        (graph(input=["x", "x"]), "net.arc.graph.input: duplicate name 'x'"),
        (graph(input=["x", "body"]), "net.arc.graph.input: duplicate name 'body'"),
        (graph(modules={"body": [], "head": ["body"]}), "net.arc.graph.modules.body: must list the inputs"),
        (graph(modules={"body": ["x"], "head": ["body"], "head~": ["x"]}), "head~: a node is a module's name"),
    ],
)
def test_graph_mistakes(arc: Any, message: str) -> None:
    assert message in refused(arc)


@pytest.mark.parametrize(
    "name", ["__class__", "_modules", "forward", "training", "a.b", "", "1", "body~b", "input_names"]
)
def test_module_names_torch_cannot_hold(name: str) -> None:
    assert "net.arc.modules" in refused({"modules": {name: "ReLU"}})


# Hostile files


class Trap:
    """An object that notices any use of it."""

    touched = False

    def _touch(self, *args: Any, **kwargs: Any) -> Any:
        Trap.touched = True
        raise AssertionError("the object was used")

    __repr__ = __str__ = __len__ = __iter__ = __index__ = __int__ = __call__ = __bool__ = _touch


def deep_list(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


def deep_sequential(depth: int) -> Any:
    spec: Any = "ReLU"
    for _ in range(depth):
        spec = {"Sequential": [spec]}
    return spec


def laughs() -> list[Any]:
    """What nested YAML aliases give: ten lines of text that stand for 10**10 items."""
    items: list[Any] = ["ReLU"] * 10
    for _ in range(10):
        items = [items] * 10
    return items


def endless() -> dict[str, Any]:
    """A mapping that holds itself, as a YAML alias can make."""
    arc = one("ReLU")
    arc["modules"]["again"] = arc
    return arc


def wide(n: int) -> dict[str, Any]:
    return {"compact": {"layer": {"type": "LazyLinear", "keys": "out_features", "args": [1] * n}}}


HOSTILE: dict[str, Any] = {
    "os_system": one({"os.system": {"command": "echo hacked"}}),
    "import": one({"__import__": {"name": "os"}}),
    "eval": one("eval"),
    "dunder": one({"__class__": None}),
    "module_base": one({"Module": None}),
    "path_to_class": one({"torch.nn.Linear": {"in_features": 1, "out_features": 1}}),
    "object_as_layer": one(Trap()),
    "class_as_layer": one(nn.ReLU),
    "object_as_argument": one({"LazyLinear": {"out_features": Trap()}}),
    "object_in_list": one({"LayerNorm": {"normalized_shape": [Trap()]}}),
    "object_in_graph": {"modules": {"body": "ReLU"}, "graph": {"input": "x", "modules": {"body": [Trap()]}}},
    "object_as_arc": Trap(),
    "function": one({"LazyLinear": {"out_features": os.system}}),
    "tensor": one({"Embedding": {"num_embeddings": 1, "embedding_dim": 1, "_weight": torch.zeros(1, 1)}}),
    "key_not_text": {"modules": {1: "ReLU"}},
    "device": one({"Linear": {"in_features": 1, "out_features": 1, "device": "cuda"}}),
    "dtype": one({"Linear": {"in_features": 1, "out_features": 1, "dtype": "float16"}}),
    "dunder_argument": one({"Linear": {"in_features": 1, "out_features": 1, "__class__": 1}}),
    "private_argument": one({"Embedding": {"num_embeddings": 1, "embedding_dim": 1, "_freeze": True}}),
    "not_finite": one({"Threshold": {"threshold": float("nan"), "value": 0.0}}),
    "long_text": one("R" * 10_000),
    "long_key": {"modules": {"R" * 10_000: "ReLU"}},
    "deep_list": one({"Sequential": deep_list(10_000)}),
    "deep_sequential": one(deep_sequential(200)),
    "laughs": one({"Sequential": laughs()}),
    "endless": endless(),
    "big_linear": one(linear(1_000_000, 1_000_000)),
    "big_sum": one({"Sequential": [linear(20_000, 20_000)] * 3}),
    "big_conv": one({"Conv3d": {"in_channels": 1000, "out_channels": 1000, "kernel_size": 100}}),
    "big_embedding": one({"Embedding": {"num_embeddings": 1_000_000_000, "embedding_dim": 8}}),
    "overflow": one({"Conv3d": {"in_channels": 10**9, "out_channels": 10**9, "kernel_size": 10**9}}),
    "huge_int": one(linear(10**5000, 1)),
    "many_modules": one({"Sequential": ["ReLU"] * (MAX_MODULES + 1)}),
    "many_compact": one(wide(MAX_MODULES + 1)),
    "many_nested_compact": one(
        {
            "compact": {
                "prelayer": [wide(500)],
                "layer": {"type": "LazyLinear", "keys": "out_features", "args": [1] * 500},
            }
        }
    ),
    "many_nodes": {
        "modules": {"body": "ReLU"},
        "graph": {"input": "x", "modules": {f"body~{i}": ["x"] for i in range(MAX_MODULES + 1)}, "output": "body~0"},
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arcs_are_refused_quickly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(os, "system", ran.append)
    Trap.touched = False
    start = time.perf_counter()
    message = refused(HOSTILE[name])
    assert time.perf_counter() - start < 5
    assert message.startswith("net.arc")
    assert len(message) < 1_000
    assert not ran
    assert not Trap.touched


def doubling(n: int) -> ArcNet:
    """Each node joins the one before with itself: 2**n values out of one."""
    nodes: dict[str, Any] = {"cat": ["x", "x"]}
    for i in range(n):
        last = list(nodes)[-1]
        nodes[f"cat~{i}"] = [last, last]
    return build_arc(
        {"modules": {"cat": "Concat"}, "graph": {"input": "x", "modules": nodes, "output": f"cat~{n - 1}"}}
    )


GROWTH: dict[str, tuple[Any, tuple[int, ...]]] = {
    "lazy_linear": ({"Sequential": [{"LazyLinear": {"out_features": 100_000}}] * 3}, (1, 4)),
    "linear_rows": ({"Sequential": [{"Unsqueeze": None}, linear(1, 100_000)]}, (1, 100_000)),
    "lazy_conv": ({"LazyConv2d": {"out_channels": 100_000, "kernel_size": 100}}, (1, 3, 100, 100)),
    "padding": ({"LazyConv2d": {"out_channels": 1, "kernel_size": 1, "padding": 100_000}}, (1, 1, 4, 4)),
    "transpose": ({"LazyConvTranspose2d": {"out_channels": 1, "kernel_size": 1, "stride": 9_999}}, (1, 1, 4, 4)),
    "pool": ({"AdaptiveAvgPool2d": {"output_size": 100_000}}, (1, 1, 4, 4)),
    "attention": ({"MultiheadAttention": {"embed_dim": 1, "num_heads": 1, "batch_first": True}}, (1, 20_000, 1)),
}


@pytest.mark.parametrize("name", GROWTH)
def test_growth_is_refused_before_it_is_allocated(name: str) -> None:
    spec, shape = GROWTH[name]
    nodes = {"body": ["x", "x", "x"] if name == "attention" else ["x"]}
    net = build_arc(one(spec) | {"graph": {"input": "x", "modules": nodes, "output": "body"}})
    start = time.perf_counter()
    with pytest.raises(SpecError, match=r"at most (1,000,000,000|100,000,000) are allowed"):
        materialize(net, torch.zeros(shape))
    assert time.perf_counter() - start < 5


def test_doubling_is_refused_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slm_lab.agent.net.arc.MAX_PASS", 1_000)
    with pytest.raises(SpecError, match="one pass makes 1,022 values, at most 1,000"):
        materialize(doubling(900), torch.zeros(1, 1))


@pytest.mark.parametrize(
    ("spec", "shape", "parameters", "values"),
    [
        ({"LazyLinear": {"out_features": 5}}, (2, 3), 15, 10),
        # 4x4 places, a window of 2 * 3 * 3 against 8 channels.
        ({"LazyConv2d": {"out_channels": 8, "kernel_size": 3}}, (1, 2, 6, 6), 144, 16 * 18),
        ({"LazyConv2d": {"out_channels": 20, "kernel_size": 3, "stride": 3, "padding": 1}}, (1, 2, 7, 7), 360, 9 * 20),
        ({"Embedding": {"num_embeddings": 9, "embedding_dim": 4}}, (2, 3), 0, 24),
        ("Tanh", (2, 3), 0, 6),
    ],
)
def test_foresee_by_hand(spec: Any, shape: tuple[int, ...], parameters: int, values: int) -> None:
    net = build_arc(one(spec))
    assert foresee(net.get_submodule("body"), [torch.zeros(shape)]) == (parameters, values)


def test_building_stays_clear_of_the_compiler() -> None:
    # A forward pass on the meta device would import torch's compiler: seconds at every start.
    code = (
        "import sys, torch\n"
        "from slm_lab.agent.net.arc import build_arc, materialize\n"
        "seq = [{'LazyConv2d': {'out_channels': 2, 'kernel_size': 3}}, 'LazyBatchNorm2d', 'ReLU', 'Flatten',\n"
        "       {'Linear': {'in_features': 8, 'out_features': 4}}, {'LayerNorm': {'normalized_shape': 4}}, 'PReLU']\n"
        "materialize(build_arc({'modules': {'body': {'Sequential': seq}}}), torch.zeros(1, 1, 4, 4))\n"
        "build_arc({'modules': {'body': {'Embedding': {'num_embeddings': 3, 'embedding_dim': 2, 'padding_idx': 0}}}})\n"
        "attention = {'embed_dim': 4, 'num_heads': 2, 'add_bias_kv': True}\n"
        "build_arc({'modules': {'body': {'MultiheadAttention': attention}}})\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
