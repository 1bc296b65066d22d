"""The encoder `rendered`: a picture of the terminal around the hero, as the reference system has, to compare with it.

Sizes are those of the NetHack Challenge 2021 baseline that Motif and ONI build on: 6x6 pixels a character, three
strided convolutions, two layers for status and message each, ELU, orthogonal weights. The font is another (the one that
matplotlib brings), the status features are this project's, and the picture is put together here, on the network's
device, so that a fragment carries characters instead of pixels.
"""

from __future__ import annotations

import functools
import math
import string
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from oni_ray.policy.network import NetworkSpec

CELL = 6
"""Height and width of a character in the picture, in pixels."""
_STRIDED = ((8, 4), (4, 2), (3, 2))  # kernel and stride of each convolution
_HIDDEN = 128  # units of each layer for status and message


class RenderedEncoder(nn.Module):
    """Picture of the crop around the hero, status line and message characters -> one vector a step."""

    characters: torch.Tensor
    palette: torch.Tensor

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        # Buffers that checkpoints hold: a policy sees what it was trained with, however another Pillow draws.
        self.register_buffer("characters", torch.tensor(character_images()))
        self.register_buffer("palette", torch.tensor(terminal_palette()))
        layers: list[nn.Module] = []
        inputs, outputs, side = 3, spec.channels, spec.box("chars").shape[0] * CELL
        for kernel, stride in _STRIDED:
            layers += [nn.Conv2d(inputs, outputs, kernel, stride), nn.ELU()]
            inputs, outputs, side = outputs, 2 * outputs, (side - kernel) // stride + 1
        layers += [nn.Flatten(), nn.Linear(inputs * side * side, spec.hidden_size), nn.ELU()]
        self.screen = nn.Sequential(*layers)
        status = spec.box("status").shape[0]
        self.status = _two_layers(status)
        self.message = _two_layers(spec.box("message").shape[0])
        self.width = spec.hidden_size + _HIDDEN + status + _HIDDEN
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # these layers have one

    def forward(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """[N, ...] observations of `RenderedView` -> [N, width] float32."""
        status = observation["status"]
        return torch.cat(
            (
                self.screen(self.picture(observation["chars"], observation["colors"])),
                self.status(status),
                status,
                self.message(observation["message"] / 255),
            ),
            dim=-1,
        )

    def picture(self, chars: torch.Tensor, colors: torch.Tensor) -> torch.Tensor:
        """Characters and colours, [N, R, C] uint8 each -> red, green, blue, [N, 3, R * CELL, C * CELL] in [0, 1]."""
        ink = self.characters[chars.int()].permute(0, 1, 3, 2, 4)  # [N, R, CELL, C, CELL]
        tint = self.palette[colors.int()].permute(0, 3, 1, 2)  # [N, 3, R, C]
        return (ink.unsqueeze(1) * tint[:, :, :, None, :, None]).flatten(4).flatten(2, 3)


@functools.cache
def character_images() -> np.ndarray:
    """How much ink each pixel of each character has, [256, CELL, CELL] float32 in [0, 1]; control characters none.

    They are drawn large, between the upper and lower end of all ASCII characters, and averaged: drawn at the size of a
    cell, "<" and ">", the stairs, would look alike.
    """
    import matplotlib  # here, since only this encoder draws
    from PIL import Image, ImageDraw, ImageFont

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf")
    font = ImageFont.truetype(path, 6 * CELL, layout_engine=ImageFont.Layout.BASIC)
    _, top, _, bottom = font.getbbox(string.printable.strip())
    size = math.ceil(font.getlength("M")), math.ceil(bottom - top)
    images = np.zeros((256, CELL, CELL), np.float32)
    for code in filter(lambda code: chr(code).isprintable(), range(256)):
        image = Image.new("L", size)
        ImageDraw.Draw(image).text((0, -top), chr(code), fill=255, font=font)
        images[code] = np.asarray(image.resize((CELL, CELL), Image.Resampling.BOX), np.float32) / 255
    images.setflags(write=False)
    return images


def terminal_palette() -> np.ndarray:
    """Red, green and blue of the terminal's 16 colours, [16, 3] float32 in [0, 1].

    Bits 0, 1 and 2 of a colour's number are red, green and blue; from 8 on they are bright. 8 itself, in which NLE
    shows what is dark, is a light grey as in the reference: black would not be seen.
    """
    palette = [[level * (color >> bit & 1) for bit in range(3)] for level in (128, 255) for color in range(8)]
    palette[8] = [192, 192, 192]
    return np.array(palette, np.float32) / 255


def _two_layers(inputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, _HIDDEN), nn.ELU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ELU())
