"""Convolutional bodies: layers as the spec lists them, images as they come."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from slm_lab.agent.net.conv import ConvNet
from slm_lab.agent.net.model import ActorCriticNet
from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.net import ConvNetSpec


def conv(**keys: Any) -> ConvNetSpec:
    return ConvNetSpec.model_validate(
        {"type": "ConvNet", "conv_hid_layers": [[4, 3, 1], [6, 3, 2]], "fc_hid_layers": [8], **keys}
    )


def build(obs_shape: tuple[int, ...] = (2, 9, 9), **keys: Any) -> ConvNet:
    torch.manual_seed(0)
    return ConvNet(conv(**keys), obs_shape).eval()


def test_layers_in_order() -> None:
    net = build(conv_hid_layers=[[4, 3, 2, 1, 2], [6, 3]], fc_hid_layers=[8, 5], hid_layers_activation="tanh")
    first, second = (layer for layer in net.layers if isinstance(layer, nn.Conv2d))
    # channels, kernel, stride, padding, dilation, in this order
    assert (first.in_channels, first.out_channels, first.kernel_size) == (2, 4, (3, 3))
    assert (first.stride, first.padding, first.dilation) == ((2, 2), (1, 1), (2, 2))
    assert (second.in_channels, second.out_channels, second.stride, second.padding) == (4, 6, (1, 1), (0, 0))
    kinds = [nn.Conv2d, nn.Tanh, nn.Conv2d, nn.Tanh, nn.Flatten, nn.Linear, nn.Tanh, nn.Linear, nn.Tanh]
    assert [type(layer) for layer in net.layers] == kinds
    assert net.out_size == 5


def test_nature_cnn_size() -> None:
    """84 -> 20 -> 9 -> 7, so 64*7*7 = 3136 features before the 512."""
    net = ConvNet(ConvNetSpec(), (4, 84, 84))
    linear = next(layer for layer in net.layers if isinstance(layer, nn.Linear))
    assert (linear.in_features, linear.out_features) == (3136, 512)
    assert net(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 512)


def test_without_fc_layers_the_convolutions_are_the_features() -> None:
    net = build(fc_hid_layers=[])
    # 9 -> 7 -> 3, 6 channels
    assert net.out_size == 54
    assert net(torch.zeros(1, 2, 9, 9)).shape == (1, 54)


def test_uint8_and_float_are_read_alike() -> None:
    net = build()
    image = torch.randint(0, 256, (3, 2, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(net(image).detach(), net(image.float()).detach())
    # the memory's own tensor is left as it was
    assert image.dtype == torch.uint8


def test_normalize_divides_by_255_once() -> None:
    image = torch.randint(0, 256, (3, 2, 9, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scaled = build(normalize=True)(image)
    np.testing.assert_allclose(scaled.detach(), build()(image.float() / 255).detach(), rtol=1e-4, atol=1e-6)


def test_batch_norm_from_the_second_convolution_after_the_activation() -> None:
    net = build(batch_norm=True)
    kinds = [nn.Conv2d, nn.ReLU, nn.Conv2d, nn.ReLU, nn.BatchNorm2d, nn.Flatten, nn.Linear, nn.ReLU]
    assert [type(layer) for layer in net.layers] == kinds
    # finding the size must not leave a trace of the zero image in the running statistics
    norm = next(layer for layer in net.layers if isinstance(layer, nn.BatchNorm2d))
    state = norm.state_dict()
    assert state["num_batches_tracked"] == 0
    assert not state["running_mean"].any()


def test_batch_norm_net_starts_in_training_mode() -> None:
    """Finding the size switches layers to eval; they must follow `.train()` afterwards."""
    net = ConvNet(conv(batch_norm=True), (2, 9, 9)).train()
    assert all(layer.training for layer in net.modules())


def test_every_layer_learns() -> None:
    net = build()
    net(torch.rand(16, 2, 9, 9)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.norm()) > 0, name


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_actor_critic_on_images(shared: bool) -> None:
    net = ActorCriticNet(conv(shared=shared), (2, 9, 9), 3, is_gaussian=False)
    param, value = net(torch.zeros(5, 2, 9, 9, dtype=torch.uint8))
    assert param.shape == (5, 3)
    assert value.shape == (5,)


@pytest.mark.parametrize("obs_shape", [(4,), (9, 9), (1, 2, 9, 9)])
def test_needs_images(obs_shape: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="ConvNet needs images"):
        build(obs_shape)


@pytest.mark.parametrize(
    "layers",
    [[[4, 10, 1]], [[4, 3, 0]], [[4, 3, 1, 0, 0]], [[4, 8, 4], [4, 3, 1]]],
    ids=["kernel too large", "stride 0", "dilation 0", "second too large"],
)
def test_layers_that_do_not_fit_are_told_in_one_line(layers: list[list[int]]) -> None:
    with pytest.raises(SpecError, match="conv_hid_layers: does not fit images"):
        build(conv_hid_layers=layers)


@pytest.mark.parametrize("layers", [[[4]], [[4, 3, 1, 0, 1, 1]], [[4, -3]]])
def test_malformed_layers_are_refused(layers: list[list[int]]) -> None:
    raw = {
        "name": "test",
        "agent": {
            "algorithm": {"name": "Reinforce"},
            "memory": {"name": "OnPolicyReplay"},
            "net": {"type": "ConvNet", "conv_hid_layers": layers},
        },
        "env": {"name": "ALE/Pong-v5", "max_frame": 1000},
    }
    with pytest.raises(SpecError, match="conv"):
        parse_spec(raw)
