"""A character-level convolutional network over captions, their encoding as bytes, and its frozen form in snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

MAX_BYTES = 256
_PAD_TO = 32
_CHUNK = 1024  # captions evaluated at once


def encode_captions(captions: Sequence[str], length: int | None = None) -> torch.Tensor:
    """Latin-1 bytes of the captions, [N, L] uint8 padded with 0; L is `length`, or the longest rounded up to 32."""
    raw = [caption.encode("latin-1", errors="replace")[:MAX_BYTES] for caption in captions]
    longest = max((len(r) for r in raw), default=1)
    width = length or min(MAX_BYTES, -(-max(longest, 1) // _PAD_TO) * _PAD_TO)
    encoded = np.zeros((len(raw), width), dtype=np.uint8)
    for row, text in zip(encoded, raw, strict=True):
        row[: len(text)] = np.frombuffer(text, dtype=np.uint8)
    return torch.from_numpy(encoded)


class CaptionNet(nn.Module):
    """Bytes [N, L] uint8 -> [N, outputs] float32: embedding, two strided convolutions, maximum over time, two layers.

    Small on purpose: on a CPU it shares the cores with the games, and 32 steps on 256 captions must take seconds.
    What a convolution gives where it saw nothing but padding is zeroed, so a caption's outputs do not depend on the
    length of the captions beside it.
    """

    def __init__(self, outputs: int, embedding: int = 16, channels: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.sizes = {"outputs": outputs, "embedding": embedding, "channels": channels, "hidden": hidden}
        self.embed = nn.Embedding(256, embedding, padding_idx=0)
        self.first = nn.Conv1d(embedding, channels, 5, stride=2, padding=4)
        self.second = nn.Conv1d(channels, channels, 5, stride=2, padding=4)
        self.head = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, encoded: torch.Tensor) -> torch.Tensor:
        """Scores of encoded captions."""
        places = torch.arange(1, encoded.shape[1] + 1, device=encoded.device)
        lengths = ((encoded != 0) * places).amax(dim=1)
        x = self.embed(encoded.int()).transpose(1, 2)
        for convolution in (self.first, self.second):
            x = torch.relu(convolution(x))
            lengths = (lengths + 3) // 2 + 1  # output i sees inputs 2i-4 .. 2i
            x = x * (torch.arange(x.shape[2], device=x.device) < lengths[:, None])[:, None]
        return self.head(x.amax(dim=2))


def seeded_net(outputs: int, seed: int) -> CaptionNet:
    """A fresh net whose weights depend on `seed` alone; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return CaptionNet(outputs)


def trim(encoded: torch.Tensor) -> torch.Tensor:
    """Without the columns at the end that are padding in every row."""
    used = (encoded != 0).any(dim=0).nonzero()
    return encoded[:, : int(used.max()) + 1] if len(used) else encoded[:, :1]


@torch.no_grad()
def evaluate(net: CaptionNet, encoded: torch.Tensor) -> torch.Tensor:
    """The net's outputs of any number of encoded captions, [N, outputs] float32 on the CPU."""
    device = next(net.parameters()).device
    parts = [net(trim(chunk.to(device))).cpu() for chunk in encoded.split(_CHUNK)]
    return torch.cat(parts) if len(encoded) else torch.zeros(0, net.sizes["outputs"])


class FrozenCaptionNet:
    """The weights of a net at one moment as arrays; the net itself is built where it is first used."""

    def __init__(self, sizes: dict[str, int], weights: dict[str, np.ndarray]) -> None:
        self.sizes = sizes
        self.weights = weights
        self._net: CaptionNet | None = None

    @classmethod
    def of(cls, net: CaptionNet) -> FrozenCaptionNet:
        """A copy of the present weights."""
        return cls(dict(net.sizes), {k: v.detach().cpu().numpy().copy() for k, v in net.state_dict().items()})

    def __call__(self, captions: Sequence[str]) -> torch.Tensor:
        """Outputs of captions, [N, outputs] float32."""
        if self._net is None:
            self._net = self.build()
        return evaluate(self._net, encode_captions(captions))

    def build(self) -> CaptionNet:
        """The net. Raises RuntimeError or TypeError when sizes and weights do not fit."""
        net = CaptionNet(**self.sizes)
        net.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in self.weights.items()})
        return net.eval()

    def __getstate__(self) -> dict[str, Any]:
        return {"sizes": self.sizes, "weights": self.weights, "_net": None}
