"""Optimisers on flat parameters: gradient clip, learning rate and step in one object."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.rmsprop import rmsprop
from torch.optim.sgd import sgd

from slm_lab.agent.learn.flat import FlatParams, Spread
from slm_lab.lib.data import State
from slm_lab.spec.net import (
    AdamSpec,
    AdamWSpec,
    CosineAnnealingLRSpec,
    ExponentialLRSpec,
    LinearLRSpec,
    LinearToMinSpec,
    LinearToZeroSpec,
    LrSchedulerSpec,
    MultiStepLRSpec,
    NetSpec,
    OtherOptimSpec,
    RMSpropSpec,
    SGDSpec,
    StepLRSpec,
)

OTHER_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
}


class FlatOptimizer:
    """Clips and applies the gradient of one role's flat parameters."""

    def __init__(self, flat: FlatParams, net: NetSpec) -> None:
        self.flat = flat
        self.spec = net.optim_spec
        self.max_norm = net.clip_grad_val
        self.schedule = net.lr_scheduler_spec
        self.num_call = 0
        self.lr = calc_lr(self.schedule, self.spec.lr, 0, 0)
        device = flat.data.device
        # tensors, so that neither a schedule nor the count would recompile a graph
        self.lr_tensor = torch.tensor(self.lr, dtype=torch.float32, device=device)
        self.count = torch.zeros((), dtype=torch.float32, device=device)
        self.moments: dict[str, Tensor] = {name: torch.zeros_like(flat.data) for name in _moments(self.spec)}
        # 1 for each parameter that decays: not for stds of noise, nor for vectors such as biases and gains
        self.decay: Tensor | None = None
        if self.spec.weight_decay:
            is_weight = [float(part.dim() > 1 and not isinstance(part, Spread)) for part in flat.parameters]
            sizes = torch.tensor(flat.sizes, device=device)
            self.decay = torch.tensor(is_weight, dtype=flat.data.dtype, device=device).repeat_interleave(sizes)
        self.other: torch.optim.Optimizer | None = None
        if isinstance(self.spec, OtherOptimSpec):
            flat.data.grad = flat.grad
            self.other = OTHER_OPTIMIZERS[self.spec.name]([flat.data], lr=self.spec.lr)  # type: ignore[call-arg]

    def set_frame(self, frame: int) -> None:
        """Set the learning rate for a frame; call once per training."""
        if self.schedule is None:
            return
        self.lr = calc_lr(self.schedule, self.spec.lr, frame, self.num_call)
        self.num_call += 1
        self.lr_tensor.fill_(self.lr)
        if self.other is not None:
            self.other.param_groups[0]["lr"] = self.lr

    def clip(self) -> Tensor:
        """Clip the gradient; returns its norm before."""
        grad = self.flat.grad
        norm = grad.norm()
        if self.max_norm is not None:
            grad.div_((norm / self.max_norm).clamp_(min=1.0))
        return norm

    def descend(self) -> None:
        """Apply and clear the gradient; call it and `clip` under `torch.no_grad()`."""
        spec, data = self.spec, self.flat.data
        if self.decay is not None:
            # torch's functions would decay all parameters, since they are one tensor
            if isinstance(spec, AdamWSpec):
                data.addcmul_(data, self.decay, value=-self.lr * spec.weight_decay)
            else:
                self.flat.grad.addcmul_(data, self.decay, value=spec.weight_decay)
        moments, params, grads = self.moments, [self.flat.data], [self.flat.grad]
        if self.other is not None:
            self.other.step()
        elif isinstance(spec, AdamSpec):
            # The kernel that torch.optim's functions call after checks that cost six times as much. AdamWSpec is an
            # AdamSpec: they differ only in the weight decay.
            self.count += 1
            torch._fused_adam_(
                params,
                grads,
                [moments["exp_avg"]],
                [moments["exp_avg_sq"]],
                [moments["max_exp_avg_sq"]] if spec.amsgrad else [],
                [self.count],
                lr=self.lr_tensor,
                beta1=spec.betas[0],
                beta2=spec.betas[1],
                weight_decay=0.0,
                eps=spec.eps,
                amsgrad=spec.amsgrad,
                maximize=False,
            )
        elif isinstance(spec, RMSpropSpec):
            rmsprop(
                params,
                grads,
                [moments["square_avg"]],
                [moments["grad_avg"]] if spec.centered else [],
                [moments["momentum_buffer"]] if spec.momentum else [],
                [self.count],
                lr=self.lr,
                alpha=spec.alpha,
                eps=spec.eps,
                weight_decay=0.0,
                momentum=spec.momentum,
                centered=spec.centered,
            )
        elif isinstance(spec, SGDSpec):
            # torch starts momentum with the first gradient itself, undamped
            first = bool(spec.momentum) and not bool(self.count)
            buffers: list[Tensor | None] = [None if first or not spec.momentum else moments["momentum_buffer"]]
            sgd(
                params,
                grads,
                buffers,
                lr=self.lr,
                momentum=spec.momentum,
                dampening=spec.dampening,
                weight_decay=0.0,
                nesterov=spec.nesterov,
                maximize=False,
            )
            if first and buffers[0] is not None:
                moments["momentum_buffer"].copy_(buffers[0])
            self.count += 1
        self.flat.grad.zero_()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a step reads and writes, apart from the gradient."""
        decay = {} if self.decay is None else {"decay": self.decay}
        return {"data": self.flat.data, "lr": self.lr_tensor, "count": self.count, **decay, **self.moments}

    def apply(
        self, grad: Tensor, data: Tensor, lr: Tensor, count: Tensor, decay: Tensor | None = None, **moments: Tensor
    ) -> Tensor:
        """`clip` and `descend` on given tensors, as formulas that a compiler can fuse; returns the norm.

        torch's own functions cannot be fused: they read numbers of tensors on the host, or call fixed kernels.
        """
        spec = self.spec
        norm = grad.norm()
        if self.max_norm is not None:
            grad = grad * compute_once(1 / (norm / self.max_norm).clamp(min=1.0))
        is_first = count == 0
        count.add_(1)
        if decay is not None and isinstance(spec, AdamWSpec):
            data.mul_(1 - lr * spec.weight_decay * decay)
        elif decay is not None:
            grad = grad + spec.weight_decay * decay * data
        if isinstance(spec, AdamSpec):
            beta1, beta2 = spec.betas
            mean, square = moments["exp_avg"], moments["exp_avg_sq"]
            mean.lerp_(grad, 1 - beta1)
            square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            if spec.amsgrad:
                square = moments["max_exp_avg_sq"].copy_(torch.maximum(moments["max_exp_avg_sq"], square))
            root = square.sqrt() * compute_once(_bias(beta2, count).rsqrt()) + spec.eps
            data.sub_(compute_once(lr / _bias(beta1, count)) * mean / root)
        elif isinstance(spec, RMSpropSpec):
            square = moments["square_avg"].mul_(spec.alpha).addcmul_(grad, grad, value=1 - spec.alpha)
            if spec.centered:
                square = square - moments["grad_avg"].lerp_(grad, 1 - spec.alpha).square()
            change = grad / (square.sqrt() + spec.eps)
            if spec.momentum:
                change = moments["momentum_buffer"].mul_(spec.momentum).add_(change)
            data.sub_(lr * change)
        elif isinstance(spec, SGDSpec):
            if spec.momentum:
                buffer = moments["momentum_buffer"]
                # torch starts momentum with the first gradient itself, undamped
                later = spec.momentum * buffer + (1 - spec.dampening) * grad
                buffer.copy_(torch.where(is_first, grad, later))
                grad = grad + spec.momentum * buffer if spec.nesterov else buffer
            data.sub_(lr * grad)
        else:
            raise TypeError(f"{spec.name} has no formula here; it cannot be compiled")
        return norm

    def state_dict(self) -> State:
        """Everything that the next step depends on, apart from the parameters."""
        return {
            "count": self.count,
            "moments": self.moments,
            "lr": {"value": self.lr, "num_call": self.num_call},
            "other": self.other.state_dict() if self.other is not None else None,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state."""
        self.count.copy_(state["count"])
        for name, moment in self.moments.items():
            moment.copy_(state["moments"][name])
        self.lr = float(state["lr"]["value"])
        self.num_call = int(state["lr"]["num_call"])
        self.lr_tensor.fill_(self.lr)
        if self.other is not None:
            self.other.load_state_dict(state["other"])


def compute_once(number: Tensor) -> Tensor:
    """The same number, computed once: otherwise the compiler would repeat its formula for every weight that uses it.

    The compiler inlines formulas, except for reductions, such as a maximum, over more than a few numbers.
    """
    return number.expand(16).amax()


def _bias(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, the factor by which a moment of Adam is too small."""
    power = (count * math.log(beta)).exp() if beta else torch.zeros_like(count)
    return 1 - power


def _moments(spec: Any) -> list[str]:
    if isinstance(spec, AdamSpec):
        return ["exp_avg", "exp_avg_sq"] + (["max_exp_avg_sq"] if spec.amsgrad else [])
    if isinstance(spec, RMSpropSpec):
        return ["square_avg"] + ["grad_avg"] * spec.centered + ["momentum_buffer"] * bool(spec.momentum)
    if isinstance(spec, SGDSpec) and spec.momentum:
        return ["momentum_buffer"]
    return []


def calc_lr(spec: LrSchedulerSpec | None, start: float, frame: int, num_call: int) -> float:
    """The learning rate at a frame and after `num_call` training calls.

    torch's own schedules are written out: its classes drive an optimiser object, which takes seconds to import.
    """
    match spec:
        # a spec sets the last frame to env.max_frame by default
        case LinearToZeroSpec(frame=int(last)):
            return start * max(0.0, 1 - frame / last)
        case LinearToMinSpec(frame=int(last)):
            return start * (spec.min_factor + (1 - spec.min_factor) * max(0.0, 1 - frame / last))
        case StepLRSpec():
            return start * spec.gamma ** (num_call // spec.step_size)
        case MultiStepLRSpec():
            return start * spec.gamma ** sum(milestone <= num_call for milestone in spec.milestones)
        case ExponentialLRSpec():
            return start * spec.gamma**num_call
        case LinearLRSpec():
            progress = min(1.0, num_call / spec.total_iters)
            return start * (spec.start_factor + (spec.end_factor - spec.start_factor) * progress)
        case CosineAnnealingLRSpec():
            wave = 0.5 * (1 + math.cos(math.pi * num_call / spec.T_max))
            return spec.eta_min + (start - spec.eta_min) * wave
        case _:
            return start
