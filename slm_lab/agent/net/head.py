"""The kinds of critics: they predict the mean of the return, its quantiles or a histogram, and learn from targets.

A critic predicts K numbers for each return (..., K), or only the mean (...). `backup` computes a target from the
numbers of the successor.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from slm_lab.spec.critic import CategoricalCritic, CriticSpec, EnsembleQuantileCritic, ImplicitCritic, QuantileCritic

Reduction = Literal["min", "mean"]


class Head(ABC):
    """A kind of critic: the meaning of its numbers, its targets and its loss."""

    # numbers per return
    size: int

    @abstractmethod
    def value(self, out: Tensor) -> Tensor:
        """The mean return (...)."""

    @abstractmethod
    def backup(self, reward: Tensor, discount: Tensor, out: Tensor, cost: Tensor | None = None) -> Tensor:
        """The target r + discount (Z' - cost); `out` are the successor's numbers, `cost` is alpha log pi of SAC."""

    @abstractmethod
    def target_value(self, target: Tensor) -> Tensor:
        """The mean of a target (...)."""

    @abstractmethod
    def loss(self, out: Tensor, target: Tensor, *fractions: Tensor) -> Tensor:
        """One loss per return (...); targets are the same for all critics of an ensemble."""

    def reduce(self, out: Tensor, reduction: Reduction) -> Tensor:
        """An ensemble's numbers (C, ..., K) as those of one critic: the one of the smallest mean, or the mixture."""
        if reduction == "mean":
            return self.mix(out)
        index = self.value(out).argmin(0)[None, ..., None].expand(1, *out.shape[1:])
        return out.gather(0, index).squeeze(0)

    @abstractmethod
    def mix(self, out: Tensor) -> Tensor:
        """The mixture of the predictions of an ensemble (C, ..., K)."""

    def draw(self, num: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random fractions for values and for targets, as inputs of IQN's nets; empty for other kinds."""
        return ()


class ValueHead(Head):
    """Predicts only the mean."""

    size = 1

    def __init__(self, element_loss: Callable[..., Tensor]) -> None:
        self.element_loss = element_loss

    def value(self, out: Tensor) -> Tensor:
        return out

    def backup(self, reward: Tensor, discount: Tensor, out: Tensor, cost: Tensor | None = None) -> Tensor:
        return reward + discount * (out if cost is None else out - cost)

    def target_value(self, target: Tensor) -> Tensor:
        return target

    def loss(self, out: Tensor, target: Tensor, *fractions: Tensor) -> Tensor:
        return self.element_loss(out, target.expand_as(out))

    def reduce(self, out: Tensor, reduction: Reduction) -> Tensor:
        return out.amin(0) if reduction == "min" else out.mean(0)

    def mix(self, out: Tensor) -> Tensor:
        return out.mean(0)


class QuantileHead(Head):
    """Quantiles at the middles of K equal parts of [0, 1] (Dabney et al. 2018a), in any order.

    A loss is the sum over the quantiles of a value, as in QR-DQN, or their mean, as in TQC.
    """

    def __init__(self, size: int, num_drop: int = 0, is_summed: bool = False) -> None:
        self.size = size
        self.num_drop = num_drop
        self.is_summed = is_summed

    def value(self, out: Tensor) -> Tensor:
        return out.mean(-1)

    def backup(self, reward: Tensor, discount: Tensor, out: Tensor, cost: Tensor | None = None) -> Tensor:
        out = out if cost is None else out - cost.unsqueeze(-1)
        return reward.unsqueeze(-1) + discount.unsqueeze(-1) * out

    def target_value(self, target: Tensor) -> Tensor:
        return target.mean(-1)

    def loss(self, out: Tensor, target: Tensor, *fractions: Tensor) -> Tensor:
        fraction = fractions[0] if fractions else calc_middles(out.shape[-1], out.device)
        # every target against every quantile (..., K, K')
        error = target.unsqueeze(-2) - out.unsqueeze(-1)
        size = error.abs()
        huber = torch.where(size > 1, size - 0.5, 0.5 * error.square())
        weight = (fraction.unsqueeze(-1) - (error.detach() < 0).float()).abs()
        loss = (weight * huber).mean(-1)
        return loss.sum(-1) if self.is_summed else loss.mean(-1)

    def mix(self, out: Tensor) -> Tensor:
        pool = out.movedim(0, -2).flatten(-2)
        if not self.num_drop:
            return pool
        # drop the largest quantiles of all critics together, against overestimation (Kuznetsov et al. 2020)
        return pool.sort(-1).values[..., : pool.shape[-1] - self.num_drop * len(out)]


class ImplicitHead(QuantileHead):
    """Quantiles at fractions that are inputs of the net (Dabney et al. 2018b)."""

    def __init__(self, spec: ImplicitCritic, is_summed: bool) -> None:
        super().__init__(spec.num_quantile, is_summed=is_summed)
        self.num_act = spec.num_act_quantile
        self.num_cosine = spec.num_cosine

    def draw(self, num: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return torch.rand(2, num, self.size, generator=generator, device=generator.device).unbind()


class CategoricalHead(Head):
    """Logits of K evenly spaced returns (Bellemare et al. 2017)."""

    def __init__(self, spec: CategoricalCritic) -> None:
        self.size = spec.num_atom
        self.low, self.high = spec.v_min, spec.v_max

    def support(self, like: Tensor) -> Tensor:
        """The returns (K,)."""
        return torch.linspace(self.low, self.high, self.size, device=like.device)

    def value(self, out: Tensor) -> Tensor:
        return self.target_value(out.softmax(-1))

    def backup(self, reward: Tensor, discount: Tensor, out: Tensor, cost: Tensor | None = None) -> Tensor:
        support = self.support(out)
        atom = support if cost is None else support - cost.unsqueeze(-1)
        moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * atom
        # NaN if a reward is infinite, which the clamp alone would hide
        place = moved.clamp(self.low, self.high) + 0 * moved
        return self._project(out.softmax(-1), (place - self.low) * ((self.size - 1) / (self.high - self.low)))

    def _project(self, prob: Tensor, place: Tensor) -> Tensor:
        """Two-hot: divide each probability between the two atoms next to its place (..., K), in units of atoms."""
        if place.device.type != "cpu":
            # scatter_add on a GPU adds in any order, so runs would differ; all pairs (..., from, to) are cheap there
            atom = torch.arange(self.size, device=place.device)
            share = (1 - (place.unsqueeze(-1) - atom).abs()).clamp(min=0)
            return (prob.unsqueeze(-1) * share).sum(-2)
        below = place.floor().clamp(max=self.size - 2)
        share = place - below
        index = below.nan_to_num().long()
        first = torch.zeros_like(prob).scatter_add(-1, index, prob * (1 - share))
        return first.scatter_add(-1, index + 1, prob * share)

    def target_value(self, target: Tensor) -> Tensor:
        return (target * self.support(target)).sum(-1)

    def loss(self, out: Tensor, target: Tensor, *fractions: Tensor) -> Tensor:
        return -(target * out.log_softmax(-1)).sum(-1)

    def mix(self, out: Tensor) -> Tensor:
        return out.log_softmax(-1).logsumexp(0)


def calc_middles(num: int, device: torch.device) -> Tensor:
    """The middles of `num` equal parts of [0, 1]."""
    return (torch.arange(num, device=device) + 0.5) / num


def build_head(spec: CriticSpec, element_loss: Callable[..., Tensor], is_summed: bool = False) -> Head:
    """Build the kind of critic that a spec asks for; `element_loss`, from `loss_spec`, is for plain values."""
    if spec.kind == "value":
        return ValueHead(element_loss)
    match spec:
        case CategoricalCritic():
            return CategoricalHead(spec)
        case ImplicitCritic():
            return ImplicitHead(spec, is_summed)
        case EnsembleQuantileCritic():
            return QuantileHead(spec.num_quantile, spec.num_drop, is_summed)
    assert isinstance(spec, QuantileCritic)
    return QuantileHead(spec.num_quantile, is_summed=is_summed)
