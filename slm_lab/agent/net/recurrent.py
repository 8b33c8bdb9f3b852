"""Bodies with a hidden state: their interface, and the body of torch's recurrent cells."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from slm_lab.agent.net.activation import build_activation
from slm_lab.spec.net import RecurrentNetSpec

CELLS: dict[str, type[nn.RNNBase]] = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}
CellFn = Callable[..., Tensor]
CELL_FNS: dict[str, CellFn] = {"GRU": torch.gru_cell, "RNN": torch.rnn_tanh_cell}
# torch's module is faster for sequences of at least this many steps between resets
MIN_SEGMENT = 4


class RecurrentBody(nn.Module, ABC):
    """A body whose features depend on what it saw before.

    | name     | shape       | meaning                                                              |
    |----------|-------------|----------------------------------------------------------------------|
    | obs      | (B, ...)    | observations of one step, or (L, B, ...) of L steps                  |
    | carry    | (B, S)      | everything remembered, side by side; zeros at the start of episodes  |
    | reset    | (L, B)      | whether an episode starts here: the carry is cleared before the step |
    | features | (B, F)      | output of one step, or (L, B, F)                                     |

    S is `state_size`, F is `out_size`; it learns from sequences of `seq_len` steps.
    """

    state_size: int
    out_size: int
    seq_len: int

    @abstractmethod
    def step(self, obs: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        """Features and the carry after one step."""

    @abstractmethod
    def unroll(self, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Features of L steps and the carry after the last, equal to L calls of `step`."""


class RecurrentNet(RecurrentBody):
    """Fully connected layers on a flattened observation, then recurrent ones; images are flattened too."""

    def __init__(self, spec: RecurrentNetSpec, obs_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.obs_dim = len(obs_shape)
        size = math.prod(obs_shape)
        layers: list[nn.Module] = []
        for width in spec.fc_hid_layers:
            layers += [nn.Linear(size, width), build_activation(spec.hid_layers_activation)]
            size = width
        self.layers = nn.Sequential(*layers)
        self.cell_type = spec.cell_type
        self.num_layers = spec.rnn_num_layers
        self.rnn = CELLS[spec.cell_type](size, spec.rnn_hidden_size, spec.rnn_num_layers)  # type: ignore[arg-type]
        # h of each layer, then c of each layer
        self.num_part = self.num_layers * (2 if spec.cell_type == "LSTM" else 1)
        self.state_size = self.num_part * spec.rnn_hidden_size
        self.out_size = spec.rnn_hidden_size
        self.seq_len = spec.seq_len

    def _encode(self, obs: Tensor) -> Tensor:
        """The inputs of the recurrent layers (..., D)."""
        obs = obs.float()
        return self.layers(obs if self.obs_dim == 1 else obs.flatten(-self.obs_dim))

    def step(self, obs: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        return self._step(self._encode(obs), carry)

    def _step(self, x: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        # for one step, the cell functions are three times as fast as nn.GRU
        parts = carry.chunk(self.num_part, -1)
        hidden, cell = [], []
        for layer, weights in enumerate(self.rnn.all_weights):
            if self.cell_type == "LSTM":
                x, c = torch.lstm_cell(x, (parts[layer], parts[self.num_layers + layer]), *weights)
                cell.append(c)
            else:
                x = CELL_FNS[self.cell_type](x, parts[layer], *weights)
            hidden.append(x)
        return x, torch.cat([*hidden, *cell], -1) if self.num_part > 1 else x

    def unroll(self, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        x = self._encode(obs)
        # the only place that waits for the device: the segments depend on the resets
        starts = reset.any(1).nonzero().flatten().tolist()
        features = []
        for start, end in pairwise(sorted({0, *starts, len(x)})):
            if start in starts:
                carry = carry.masked_fill(reset[start].unsqueeze(-1), 0.0)
            if end - start < MIN_SEGMENT:
                for t in range(start, end):
                    out, carry = self._step(x[t], carry)
                    features.append(out.unsqueeze(0))
            else:
                out, carry = self._run(x[start:end], carry)
                features.append(out)
        return torch.cat(features), carry

    def _run(self, x: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        """Steps without a reset, by torch's module."""
        state = carry.unflatten(-1, (self.num_part, -1)).transpose(0, 1).contiguous()
        if self.cell_type == "LSTM":
            out, last = self.rnn(x, tuple(state.chunk(2)))
            state = torch.cat(last)
        else:
            out, state = self.rnn(x, state)
        return out, state.transpose(0, 1).flatten(1)
