"""A character-level convolutional network over captions, and their encoding as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

MAX_BYTES = 256
_PAD_TO = 32


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
    """

    def __init__(self, outputs: int, embedding: int = 16, channels: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, embedding, padding_idx=0)
        self.first = nn.Conv1d(embedding, channels, 5, stride=2, padding=4)
        self.second = nn.Conv1d(channels, channels, 5, stride=2, padding=4)
        self.head = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, outputs))

    def forward(self, encoded: torch.Tensor) -> torch.Tensor:
        """Scores of encoded captions."""
        x = self.embed(encoded.int()).transpose(1, 2)
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.head(x.amax(dim=2))
