"""The actor-critic network: an encoder, a recurrent core that respects episode starts, two heads.

Everything is time first: [T, B, ...]. The core is run over stretches of time in which no game starts anew, so a
fragment without an episode start costs one call of the fused LSTM or GRU kernel.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from oni_ray.config import PolicySection
from oni_ray.policy.rendered import RenderedEncoder

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class NetworkSpec:
    """Sizes of the network; see the `policy` section of the configuration for their meaning.

    `space` has what the encoder's view gives (`envs/observations.py`), `actions` is the number of actions.
    """

    space: gym.spaces.Dict
    actions: int
    encoder: str = "glyph_crop"
    glyph_embedding: int = 16
    channels: int = 32
    message_vocabulary: int = 4096
    message_embedding: int = 32
    core: str = "lstm"
    hidden_size: int = 256

    def box(self, name: str) -> gym.spaces.Box:
        """What the view gives under `name`."""
        part = self.space[name]
        assert isinstance(part, gym.spaces.Box)
        return part


class GlyphCropEncoder(nn.Module):
    """Map crop around the hero, status line and message words -> one vector a step."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        glyphs = spec.box("glyphs")
        side = (glyphs.shape[0] - 1) // 2 + 1
        self.glyphs = nn.Embedding(int(glyphs.high.max()) + 1, spec.glyph_embedding)
        self.map = nn.Sequential(
            nn.Conv2d(spec.glyph_embedding, spec.channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(spec.channels, spec.channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(spec.channels * side * side, spec.hidden_size),
            nn.ReLU(),
        )
        self.status = nn.Sequential(nn.Linear(spec.box("status").shape[0], 64), nn.ReLU())
        self.message = nn.EmbeddingBag(spec.message_vocabulary, spec.message_embedding, mode="mean", padding_idx=0)
        self.width = spec.hidden_size + 64 + spec.message_embedding

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """[N, ...] observations (`glyphs` [N, C, C], `status` [N, S], `message` [N, W]) -> [N, width] float32."""
        tiles = self.glyphs(observation["glyphs"].int()).permute(0, 3, 1, 2)
        return torch.cat(
            (
                self.map(tiles),
                self.status(observation["status"]),
                self.message(observation["message"].int()),
            ),
            dim=-1,
        )


ENCODERS: dict[str, type[GlyphCropEncoder | RenderedEncoder]] = {
    "glyph_crop": GlyphCropEncoder,
    "rendered": RenderedEncoder,
}
"""Encoders by `policy.encoder`: made of a `NetworkSpec`, [N, ...] observations -> [N, width] float32."""


class ActorCritic(nn.Module):
    """Encoder, recurrent core, policy head and value head."""

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder = ENCODERS[spec.encoder](spec)
        core = nn.LSTM if spec.core == "lstm" else nn.GRU
        self.core = core(self.encoder.width, spec.hidden_size)
        self.heads = nn.Linear(spec.hidden_size, spec.actions + 1)
        nn.init.orthogonal_(self.heads.weight, 0.01)
        nn.init.zeros_(self.heads.bias)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the recurrent state's parts, in the core's order."""
        return ("h", "c") if self.spec.core == "lstm" else ("h",)

    def initial_state(self, columns: int) -> State:
        """Zeros, [B, H] float32 each."""
        device = self.heads.weight.device
        return {name: torch.zeros(columns, self.spec.hidden_size, device=device) for name in self.state_names}

    def forward(
        self, observations: dict[str, torch.Tensor], state: State, resets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Logits [T, B, A], values [T, B] and the state after the last row.

        Args:
            observations: name -> [T, B, ...].
            state: name -> [B, H], the state before row 0.
            resets: [T, B] bool, rows before which the state is zeroed.
        """
        steps, columns = resets.shape
        flat = {name: value.flatten(0, 1) for name, value in observations.items()}
        features = self.encoder(flat).view(steps, columns, -1)
        hidden, state = self._recur(features, state, resets)
        heads = self.heads(hidden)
        return heads[..., :-1], heads[..., -1], state

    def _recur(self, features: torch.Tensor, state: State, resets: torch.Tensor) -> tuple[torch.Tensor, State]:
        starts = resets.any(dim=1).nonzero().flatten().tolist()
        bounds = sorted({0, *starts, features.shape[0]})
        parts = tuple(state[name] for name in self.state_names)
        outputs = []
        for begin, end in itertools.pairwise(bounds):
            if begin in starts:
                keep = (~resets[begin]).unsqueeze(-1).to(features.dtype)
                parts = tuple(part * keep for part in parts)
            output, parts = self._run_core(features[begin:end], parts)
            outputs.append(output)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0], dict(zip(self.state_names, parts, strict=True))

    def _run_core(
        self, features: torch.Tensor, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        layered = tuple(part.unsqueeze(0) for part in parts)
        output, after = self.core(features, layered if len(layered) == 2 else layered[0])
        return output, tuple(part.squeeze(0) for part in (after if isinstance(after, tuple) else (after,)))


def network_sizes(policy: PolicySection) -> dict[str, Any]:
    """The keyword arguments of `NetworkSpec` that the configuration decides."""
    return {
        "encoder": policy.encoder,
        "glyph_embedding": policy.glyph_embedding,
        "channels": policy.channels,
        "message_vocabulary": policy.message_vocabulary,
        "message_embedding": policy.message_embedding,
        "core": policy.core,
        "hidden_size": policy.hidden_size,
    }
