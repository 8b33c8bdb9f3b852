"""Arcs build what they say, and say what is wrong when they cannot."""

import copy
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from slm_lab.agent.net.arc import MAX_MODULES, build_arc
from slm_lab.agent.net.layer import LAYERS
from slm_lab.lib.errors import SpecError


def one(spec: Any) -> dict[str, Any]:
    """An arc of one module, `body`."""
    return {"modules": {"body": spec}}


def linear(n_in: int, n_out: int) -> dict[str, Any]:
    return {"Linear": {"in_features": n_in, "out_features": n_out}}


def lazy(n_out: int) -> dict[str, Any]:
    return {"LazyLinear": {"out_features": n_out}}


def chain(**modules: Any) -> dict[str, Any]:
    """Modules in a row after the input x."""
    nodes = dict(zip(modules, [["x"], *([name] for name in modules)], strict=False))
    return {"modules": modules, "graph": {"input": "x", "modules": nodes, "output": list(modules)[-1]}}


def branches(merge: Any) -> dict[str, Any]:
    """Two layers side by side, of 3 and 5 values, and what makes one of them."""
    return {
        "modules": {"left": linear(2, 3), "right": linear(2, 5), "merge": merge},
        "graph": {
            "input": ["x"],
            "modules": {"left": ["x"], "right": "x", "merge": ["left", "right"]},
            "output": ["merge"],
        },
    }


def refused(arc: Any, example: Tensor | None = None) -> str:
    """The one-line message that an arc is refused with."""
    with pytest.raises(SpecError) as caught:
        build_arc(arc).materialize(torch.zeros(1) if example is None else example)
    message = str(caught.value)
    assert "\n" not in message
    return message


# Forms


def test_sequential_equals_handmade() -> None:
    torch.manual_seed(0)
    net = build_arc(one({"Sequential": [linear(4, 8), {"Tanh": None}, {"Sequential": ["ReLU", linear(8, 2)]}]}))
    torch.manual_seed(0)
    hand = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.ReLU(), nn.Linear(8, 2)))
    x = torch.randn(5, 4)
    assert torch.equal(net(x), hand(x))
    assert list(net.state_dict()) == [f"body.{key}" for key in hand.state_dict()]
    net = build_arc({"modules": {"x": "Tanh"}})
    assert torch.equal(net(x), x.tanh())


def test_compact_expands() -> None:
    compact = {
        "prelayer": [{"Dropout": {"p": 0.25}}],
        "layer": {"type": "Linear", "keys": ["in_features", "out_features"], "args": [[4, 8], [8, 2]]},
        "postlayer": [{"LeakyReLU": {"negative_slope": 0.1}}, "Identity"],
    }
    body: Any = build_arc(one({"compact": compact})).get_submodule("body")
    assert [type(layer).__name__ for layer in body] == ["Dropout", "Linear", "LeakyReLU", "Identity"] * 2
    assert [tuple(layer.weight.shape) for layer in body if isinstance(layer, nn.Linear)] == [(8, 4), (2, 8)]
    assert (body[0].p, body[2].negative_slope) == (0.25, 0.1)
    assert body[0] is not body[4]


@pytest.mark.parametrize("args", [[8, 2], [[8], [2]]])
@pytest.mark.parametrize("keys", ["out_features", ["out_features"]])
def test_compact_single_key(keys: Any, args: list[Any]) -> None:
    net = build_arc(one({"compact": {"layer": {"type": "LazyLinear", "keys": keys, "args": args}}}))
    assert [layer.out_features for layer in net.body] == [8, 2]


def test_lists_become_what_torch_wants() -> None:
    seq = [
        {"Unflatten": {"dim": 1, "unflattened_size": [1, 4, 4]}},
        {"Conv2d": {"in_channels": 1, "out_channels": 2, "kernel_size": [3, 3], "padding": "same"}},
        {"AdaptiveAvgPool2d": {"output_size": [2, None]}},
        {"LayerNorm": {"normalized_shape": [2, 2, 4]}},
    ]
    assert build_arc(one({"Sequential": seq}))(torch.zeros(3, 16)).shape == (3, 2, 2, 4)


# Graphs


@pytest.mark.parametrize("args", [["left", "right"], [["left", "right"]]])
def test_branches_are_joined(args: list[Any]) -> None:
    arc = branches("Concat")
    arc["graph"]["modules"]["merge"] = args
    net: Any = build_arc(arc)
    x = torch.randn(6, 2)
    assert torch.equal(net(x), torch.cat([net.left(x), net.right(x)], dim=-1))
    twin = copy.deepcopy(net)
    assert torch.equal(twin(x), net(x))
    with torch.no_grad():
        twin.left.weight.zero_()
    assert not torch.equal(twin(x), net(x))


def test_keyword_inputs() -> None:
    attention = {"MultiheadAttention": {"embed_dim": 4, "num_heads": 2, "batch_first": True}}
    arc = chain(attend=attention, pick={"Get": {"key": 0}})
    arc["graph"]["modules"]["attend"] = {"query": "x", "key": "x", "value": "x"}
    net: Any = build_arc(arc)
    x = torch.randn(2, 3, 4)
    assert torch.equal(net(x), net.attend(x, x, x)[0])
    arc["graph"]["modules"]["attend"] = {"quary": "x", "key": "x", "value": "x"}
    message = refused(arc, x)
    assert message.startswith("net.arc.modules.attend.MultiheadAttention: does not fit")
    assert "'quary'" in message


def test_reuse_shares_weights_and_gradient() -> None:
    encoder = {"Linear": {"in_features": 1, "out_features": 1, "bias": False}}
    arc = {
        "modules": {"cut": {"Chunk": {"chunks": 2}}, "a": {"Get": {"key": 0}}, "b": {"Get": {"key": 1}}},
        "graph": {"input": "x", "modules": {"cut": ["x"], "a": ["cut"], "b": ["cut"]}, "output": "sum"},
    }
    arc["modules"] |= {"enc": encoder, "sum": "Add"}
    arc["graph"]["modules"] |= {"enc": ["a"], "enc~b": ["b"], "sum": ["enc", "enc~b"]}
    net: Any = build_arc(arc)
    assert len(list(net.parameters())) == 1
    # d(w*2 + w*5)/dw = 7: both uses reach the one weight.
    net(torch.tensor([[2.0, 5.0]])).backward()
    assert net.enc.weight.grad.item() == 7.0


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("Add", None, [[5.0, 7.0]]),
        ("Multiply", None, [[4.0, 10.0]]),
        ("Subtract", None, [[-3.0, -3.0]]),
        ("Concat", {"dim": 1}, [[1.0, 2.0, 4.0, 5.0]]),
        ("Stack", {"dim": 1}, [[[1.0, 2.0], [4.0, 5.0]]]),
    ],
)
def test_merge_layers(name: str, options: Any, expected: list[Any]) -> None:
    merge: Any = build_arc(one({name: options})).body
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 5.0]])
    assert merge(a, b).tolist() == expected
    if name in ("Add", "Multiply", "Subtract"):
        # (B, 1) with (B,) must not broadcast to (B, B).
        for other in (torch.zeros(3), torch.zeros(1, 3)):
            with pytest.raises(ValueError, match="do not match by element"):
                merge(torch.zeros(3, 1), other)
        assert merge(torch.zeros(3, 1), torch.zeros(3, 4)).shape == (3, 4)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ({"Reshape": {"shape": [3, 2]}}, (5, 3, 2)),
        ({"Unsqueeze": {"dim": 1}}, (5, 1, 6)),
        ({"Permute": {"dims": [1, 0]}}, (6, 5)),
        ({"Mean": {"dim": 1, "keepdim": True}}, (5, 1)),
        ({"Sequential": ["Mean", "Unsqueeze", "Squeeze"]}, (5,)),
        ({"Sequential": [{"Split": {"split_size": [2, 4]}}, {"Get": {"key": 1}}]}, (5, 4)),
        ({"Sequential": [{"Split": {"split_size": 3}}, {"Get": {"key": 1}}]}, (5, 3)),
    ],
)
def test_shape_layers(spec: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert build_arc(one(spec))(torch.zeros(5, 6)).shape == shape


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
    conv = {"LazyConv2d": {"out_channels": 8, "kernel_size": 3}}
    torch.manual_seed(1)
    net: Any = build_arc(one({"Sequential": [conv, "LazyBatchNorm2d", "ReLU", "Flatten", lazy(5), "LazyBatchNorm1d"]}))
    net.body[2].eval()
    output = net.materialize(torch.zeros(1, 3, 6, 6))
    assert output.shape == (1, 5)
    assert not output.requires_grad
    # Modes stay as they were, and the example leaves no trace in the statistics.
    assert net.training
    assert not net.body[2].training
    assert net.body[1].num_batches_tracked == 0
    assert net.body[1].running_mean.tolist() == [0.0] * 8
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    x = torch.randn(2, 3, 6, 6)
    torch.manual_seed(1)
    hand = nn.Sequential(
        nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5), nn.LazyBatchNorm1d()
    ).eval()
    expected = hand(x)
    assert torch.equal(net.eval()(x), expected)


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (
            {"Sequential": [lazy(4), "Tanh", linear(5, 1)]},
            (1, 3),
            r"Sequential[2].Linear: does not fit its input of shape (1, 4): ",
        ),
        (
            {
                "compact": {
                    "layer": {"type": "LazyConv2d", "keys": ["out_channels", "kernel_size"], "args": [[4, 3], [4, 9]]}
                }
            },
            (1, 1, 6, 6),
            "compact.layer.args[1].LazyConv2d: does not fit its input of shape (1, 4, 4, 4)",
        ),
        (
            {"LazyConv2d": {"out_channels": 4, "kernel_size": 3}},
            (1, 6),
            "LazyConv2d: does not fit its input of shape (1, 6)",
        ),
    ],
)
def test_a_misfit_names_its_layer(spec: Any, shape: tuple[int, ...], message: str) -> None:
    assert refused(one(spec), torch.zeros(shape)).startswith(f"net.arc.modules.body.{message}")


def test_path_prefix_of_messages() -> None:
    path = f"agent.critic_net.encoders.{'a' * 60}.arc"
    with pytest.raises(SpecError, match=rf"^{path}\.modules\.body\.Tanh\.alpha: unknown key"):
        build_arc(one({"Tanh": {"alpha": 1}}), path)


# Mistakes


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"Sequential": ["ReLU", "ReLU", {"LazyLinea": {"out_features": 4}}]},
            "Sequential[2].LazyLinea: unknown layer \"LazyLinea\"; did you mean 'LazyLinear'?",
        ),
        ({"sequential": ["ReLU"]}, "sequential: unknown layer \"sequential\"; did you mean 'Sequential'?"),
        (
            {"LazyLinear": {"out_feature": 4}},
            "LazyLinear.out_feature: unknown key; did you mean 'out_features'?",
        ),
        ({"Tanh": {"alpha": 1}}, "Tanh.alpha: unknown key (known: none)"),
        ({"Identity": {"alpha": 1}}, "Identity.alpha: unknown key (known: none)"),
        ({"Linear": {"in_features": 4}}, "Linear.out_features: required key is missing"),
        (
            {"Linear": {"out_features": 4}},
            "Linear.in_features: required key is missing; LazyLinear reads it from the data",
        ),
        ({"LazyLinear": {"out_features": "64"}}, 'LazyLinear.out_features: whole number expected, got "64"'),
        ({"LazyLinear": {"out_features": 64.0}}, "LazyLinear.out_features: whole number expected, got 64.0"),
        ({"LazyLinear": {"out_features": True}}, "LazyLinear.out_features: whole number expected, got true"),
        ({"LazyLinear": {"out_features": [64]}}, "LazyLinear.out_features: whole number expected, got [64]"),
        ({"LazyLinear": {"out_features": 4, "bias": 1}}, "LazyLinear.bias: true or false expected, got 1"),
        ({"LazyLinear": {"out_features": 0}}, "LazyLinear.out_features: must be 1 or more, got 0"),
        ({"LazyBatchNorm1d": {"eps": "1e-5"}}, 'LazyBatchNorm1d.eps: number expected, got "1e-5"'),
        (
            {"LazyConv2d": {"out_channels": 4, "kernel_size": [3, 3, 3]}},
            "LazyConv2d.kernel_size: at most 2 items expected, got [3, 3, 3]",
        ),
        (
            {"LazyConv2d": {"out_channels": 4, "kernel_size": 3, "padding_mode": "zero"}},
            "LazyConv2d.padding_mode: 'zeros', 'reflect', 'replicate' or 'circular' expected, got \"zero\"; "
            "did you mean 'zeros'?",
        ),
        ({"Dropout": {"p": 1.5}}, "Dropout: dropout probability has to be between 0 and 1, but got 1.5"),
        ({"Linear": [4, 2]}, "Linear: mapping expected, got [4, 2]"),
        ({"Sequential": []}, "Sequential: must be a list of at least one layer"),
        ({"Sequential": {"Linear": None}}, "Sequential: must be a list of at least one layer"),
        (
            {"Sequential": [{"LazyLinear": None, "out_features": 4}]},
            "Sequential[0]: one layer per entry, got ['LazyLinear', 'out_features']; are the arguments indented under "
            "it?",
        ),
        ({}, ": must be one layer, as in {Linear: {in_features: 4, out_features: 2}}"),
        (None, ": must be one layer, as in {Linear: {in_features: 4, out_features: 2}}"),
        ({"compact": {"layers": {}}}, "compact.layers: unknown key; did you mean 'layer'?"),
        ({"compact": {"postlayer": ["ReLU"]}}, "compact.layer: required key is missing"),
        (
            {"compact": {"layer": {"type": "LazyLinear", "keys": ["out_features"]}}},
            "compact.layer.args: required key is missing",
        ),
        (
            {"compact": {"layer": {"type": "LazyLinear", "keys": ["out_features", "bias"], "args": [[8]]}}},
            "compact.layer.args[0]: 1 value(s) for 2 key(s) ['out_features', 'bias']",
        ),
        (
            {"compact": {"layer": {"type": "LazyLinear", "keys": ["out_features"] * 2, "args": [[8, 8]]}}},
            "compact.layer.args[0]: 2 value(s) for 1 key(s) ['out_features']",
        ),
        (
            {"compact": {"layer": {"type": "LazyLinea", "keys": ["out_features"], "args": [8]}}},
            "compact.layer.args[0].LazyLinea: unknown layer \"LazyLinea\"; did you mean 'LazyLinear'?",
        ),
        (
            {"compact": {"layer": {"type": "LazyLinear", "keys": "out_features", "args": [8]}, "postlayer": ["Relu"]}},
            "compact.postlayer[0].Relu: unknown layer \"Relu\"; did you mean 'ReLU'?",
        ),
    ],
)
def test_module_mistakes(spec: Any, message: str) -> None:
    assert refused(one(spec)) == f"net.arc.modules.body{'.' if message[0] != ':' else ''}{message}"


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
        ([], ": mapping expected, got []"),
        ({}, "modules: required key is missing"),
        ({"modules": {}}, "modules: at least 1 item expected, got {}"),
        ({"module": {}}, "module: unknown key; did you mean 'modules'?"),
        ({"modules": graph()["modules"]}, ": 'graph' is missing, it must say how the 2 modules connect"),
        (graph(output=None), "graph.output: required key is missing"),
        (graph(input=None), "graph.input: required key is missing"),
        (graph(modules=None), "graph.modules: required key is missing"),
        (graph(outputs="head"), "graph.outputs: unknown key; did you mean 'output'?"),
        (graph(output="haed"), "graph.output: no input or node is named \"haed\"; did you mean 'head'?"),
        (graph(output=["head", 3]), 'graph.output: at most 1 item expected, got ["head", 3]'),
        (graph(output={}), "graph.output: text expected, got {}"),
        (graph(output=[]), "graph.output[0]: required item is missing"),
        (
            graph(modules={"body": ["x"], "head": ["bdoy"]}),
            "graph.modules.head[0]: no input or node is named \"bdoy\"; did you mean 'body'?",
        ),
        (
            graph(modules={"body": ["x"], "haed": ["body"]}),
            "graph.modules.haed: no module is named 'haed'; did you mean 'head'?",
        ),
        (
            graph(modules={"head": ["body"], "body": ["x"]}),
            "graph.modules.head[0]: 'body' is used before it is defined; nodes stand below their inputs",
        ),
        (
            graph(modules={"body": [["x", "head"]], "head": ["body"]}),
            "graph.modules.body[0][1]: 'head' is used before it is defined; nodes stand below their inputs",
        ),
        (
            graph(modules={"body": ["body"], "head": ["body"]}),
            "graph.modules.body[0]: 'body' is used before it is defined; nodes stand below their inputs",
        ),
        (graph(modules={"body": ["x"]}, output="body"), "graph: 'head' is never used, neither by a node nor as output"),
        (graph(output="body"), "graph: 'head' is never used, neither by a node nor as output"),
        (graph(input=["x", "y"]), 'graph.input: at most 1 item expected, got ["x", "y"]'),
        (graph(input="body"), "graph.input: 'body' is also the name of a module; choose another"),
        (
            graph(modules={"body": [], "head": ["body"]}),
            "graph.modules.body: must list the inputs of the node, as in [x]",
        ),
        (
            graph(modules={"body": ["x"], "head": ["body"], "head~": ["x"]}),
            'graph.modules.head~: text that matches ^[A-Za-z][A-Za-z0-9_-]*(~[A-Za-z0-9_-]+)?$ expected, got "head~"',
        ),
    ],
)
def test_graph_mistakes(arc: Any, message: str) -> None:
    assert refused(arc) == f"net.arc{'.' if message[0] != ':' else ''}{message}"


@pytest.mark.parametrize(
    "name", ["__class__", "_modules", "forward", "training", "a.b", "", "1", "body~b", "materialize"]
)
def test_module_names_torch_cannot_hold(name: str) -> None:
    assert "net.arc.modules" in refused({"modules": {name: "ReLU"}})


# Hostile files; the reader of spec files sees to plain data, depth and the number of values


def deep(depth: int) -> Any:
    spec: Any = "ReLU"
    for _ in range(depth):
        spec = {"Sequential": [spec]}
    return spec


def wide(n: int, **sides: Any) -> dict[str, Any]:
    return {"compact": {"layer": {"type": "LazyLinear", "keys": "out_features", "args": [1] * n}, **sides}}


HOSTILE: dict[str, Any] = {
    "os_system": {"os.system": {"command": "echo hacked"}},
    "import": {"__import__": {"name": "os"}},
    "eval": "eval",
    "dunder": {"__class__": None},
    "module_base": {"Module": None},
    "long_name": "R" * 20_000,
    "number": {1: None},
    "path_to_class": {"torch.nn.Linear": {"in_features": 1, "out_features": 1}},
    "class_as_layer": nn.ReLU,
    "object_as_argument": {"LazyLinear": {"out_features": object()}},
    "object_in_list": {"LayerNorm": {"normalized_shape": [object()]}},
    "tensor": {"Embedding": {"num_embeddings": 1, "embedding_dim": 1, "_weight": torch.zeros(1, 1)}},
    "device": {"Linear": {"in_features": 1, "out_features": 1, "device": "cuda"}},
    "dtype": {"Linear": {"in_features": 1, "out_features": 1, "dtype": "float16"}},
    "dunder_argument": {"Linear": {"in_features": 1, "out_features": 1, "__class__": 1}},
    "private_argument": {"Embedding": {"num_embeddings": 1, "embedding_dim": 1, "_freeze": True}},
    "big_linear": linear(1_000_000, 1_000_000),
    "big_sum": {"Sequential": [linear(20_000, 20_000)] * 3},
    "big_conv": {"Conv3d": {"in_channels": 1000, "out_channels": 1000, "kernel_size": 100}},
    "big_embedding": {"Embedding": {"num_embeddings": 1_000_000_000, "embedding_dim": 8}},
    "overflow": {"Conv3d": {"in_channels": 10**9, "out_channels": 10**9, "kernel_size": 10**9}},
    "huge_int": linear(10**50, 1),
    "many_modules": {"Sequential": ["ReLU"] * (MAX_MODULES + 1)},
    "many_nested_modules": {"Sequential": [deep(60)] * 20},
    "many_compact": wide(MAX_MODULES + 1),
    "many_nested_compact": wide(500, prelayer=[wide(500)]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_arcs_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(os, "system", ran.append)
    # far less than what these ask for; a sum of layers may reach it
    monkeypatch.setattr("slm_lab.agent.net.layer.MAX_PARAMETERS", 1_000_000)
    message = refused(one(HOSTILE[name]))
    assert message.startswith("net.arc.modules.body")
    assert len(message) < 1_000
    assert not ran


def doubling(n: int) -> dict[str, Any]:
    """Each node joins the one before with itself: 2**n values out of one."""
    nodes = {"cat": ["x", "x"]} | {f"cat~{i}": [f"cat~{i - 1}" if i else "cat"] * 2 for i in range(n)}
    return {"modules": {"cat": "Concat"}, "graph": {"input": "x", "modules": nodes, "output": f"cat~{n - 1}"}}


GROWTH: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "lazy_linear": (one({"Sequential": [lazy(100_000)] * 3}), (1, 4), "over 1,000,000,000 parameters"),
    "lazy_conv": (
        one({"LazyConv2d": {"out_channels": 100_000, "kernel_size": 100}}),
        (1, 3, 100, 100),
        "over 1,000,000,000 parameters",
    ),
    "linear_rows": (one({"Sequential": ["Unsqueeze", linear(1, 100_000)]}), (1, 100_000), "values"),
    "embedding": (one({"Embedding": {"num_embeddings": 9, "embedding_dim": 100_000}}), (1, 10_000), "values"),
    "padding": (one({"LazyConv2d": {"out_channels": 1, "kernel_size": 1, "padding": 100_000}}), (1, 1, 4, 4), "values"),
    "transpose": (
        one({"LazyConvTranspose2d": {"out_channels": 1, "kernel_size": 1, "stride": 9_999}}),
        (1, 1, 4, 4),
        "values",
    ),
    "pool": (one({"AdaptiveAvgPool2d": {"output_size": 100_000}}), (1, 1, 4, 4), "values"),
    "attention": (
        one({"MultiheadAttention": {"embed_dim": 1, "num_heads": 1, "batch_first": True}})
        | {"graph": {"input": "x", "modules": {"body": ["x", "x", "x"]}, "output": "body"}},
        (1, 20_000, 1),
        "values",
    ),
    "doubling": (doubling(900), (1, 1), "values"),
}


@pytest.mark.parametrize("name", GROWTH)
def test_growth_is_refused_before_it_is_allocated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arc, shape, message = GROWTH[name]
    if name == "doubling":
        monkeypatch.setattr("slm_lab.agent.net.arc.MAX_PASS", 1_000)
    assert message in refused(arc, torch.zeros(shape, dtype=torch.long if name == "embedding" else None))


def test_building_stays_clear_of_the_compiler() -> None:
    # A forward pass on the meta device would import torch's compiler: seconds at every start.
    code = (
        "import sys, torch\n"
        "from slm_lab.agent.net.arc import build_arc\n"
        "seq = [{'LazyConv2d': {'out_channels': 2, 'kernel_size': 3}}, 'LazyBatchNorm2d', 'ReLU', 'Flatten',\n"
        "       {'LazyWeightNormLinear': {'out_features': 4}}, 'LazyBatchRenorm1d', 'PReLU']\n"
        "build_arc({'modules': {'body': {'Sequential': seq}}}).materialize(torch.zeros(1, 1, 4, 4))\n"
        "attention = {'embed_dim': 4, 'num_heads': 2, 'add_bias_kv': True}\n"
        "build_arc({'modules': {'body': {'MultiheadAttention': attention}}})\n"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
