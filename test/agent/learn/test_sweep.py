"""Gradient steps over all minibatches of a batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from slm_lab.agent.learn.gradient import GradientStep, Loss
from slm_lab.agent.learn.learner import Learner
from slm_lab.agent.learn.sweep import Sweep
from slm_lab.spec.net import MLPNetSpec


class Batch(NamedTuple):
    """Images with a number each."""

    obs: Tensor
    value: Tensor
    missing: Tensor | None = None


def test_minibatches_are_the_rows_in_order_with_images_by_pixel() -> None:
    """Convolutions read the channels of a pixel side by side; every epoch would convert the images again."""
    images = torch.randint(0, 255, (12, 4, 6, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch = Batch(images, torch.arange(12.0))
    orders = torch.stack([torch.randperm(12, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)])
    net = nn.Linear(1, 1)
    seen: list[Batch] = []

    def calc_loss(minibatch: Batch, *args: Any) -> Loss:
        seen.append(minibatch)
        return Loss(net(minibatch.value[:, None]).mean(), {})

    learner = Learner(net, MLPNetSpec.model_validate({"optim_spec": {"name": "SGD"}}), torch.device("cpu"))
    sweep = Sweep(GradientStep(calc_loss, [learner]), 5)
    assert len(list(sweep(batch, orders))) == len(seen) == 6
    for minibatch, index in zip(seen, [part for order in orders for part in order.split(5)], strict=True):
        assert_close(minibatch.obs, images[index], rtol=0, atol=0)
        assert_close(minibatch.value, batch.value[index], rtol=0, atol=0)
        assert minibatch.obs.is_contiguous(memory_format=torch.channels_last)
        assert minibatch.missing is None


def test_a_single_row_left_over_joins_the_last_minibatch() -> None:
    """Batch norm cannot train on one row, nor can one advantage be standardised."""
    net = nn.Linear(1, 1)
    sizes: list[int] = []

    def calc_loss(minibatch: Batch, *args: Any) -> Loss:
        sizes.append(len(minibatch.value))
        return Loss(net(minibatch.value[:, None]).mean(), {})

    learner = Learner(net, MLPNetSpec.model_validate({"optim_spec": {"name": "SGD"}}), torch.device("cpu"))
    step = GradientStep(calc_loss, [learner])
    for size, expected in ((3, [3, 4]), (6, [7]), (7, [7]), (9, [7]), (5, [5, 2]), (1, [1] * 7)):
        sizes.clear()
        list(Sweep(step, size)(Batch(torch.zeros(7, 1), torch.arange(7.0)), torch.arange(7)[None]))
        assert sizes == expected, size
