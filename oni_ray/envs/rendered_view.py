"""What the encoder `rendered` sees: the characters and colours on the terminal around the hero, status and message.

The picture that the encoder looks at is drawn in the network from these: 288 bytes a step, where the pixels are 15,552.
NLE's `chars` and `colors` are the terminal's map rows, so the only difference to a crop of the whole terminal is that
the message line and the status lines do not show at the map's upper and lower border.
"""

from __future__ import annotations

import gymnasium
import numpy as np

from oni_ray.envs.observations import STATUS_FEATURES, MapCrop, status_features

SIDE = 12
"""Rows and columns of the crop, the reference's."""
_COLORS = 16


class RenderedView:
    """The view of the encoder `rendered`.

    `space` is a Dict of
        chars: [SIDE, SIDE] uint8, character codes, the hero's at row and column SIDE // 2; blank beyond the map.
        colors: [SIDE, SIDE] uint8, their terminal colours, 0 to 15; 0 beyond the map.
        status: [len(STATUS_FEATURES)] float32, see STATUS_FEATURES.
        message: [256] uint8, the message's character codes, padded with 0.
    """

    raw_keys: tuple[str, ...] = ("chars", "colors", "blstats", "message")

    def __init__(self) -> None:
        from nle import nethack

        self.space = gymnasium.spaces.Dict(
            {
                "chars": gymnasium.spaces.Box(0, 255, (SIDE, SIDE), np.uint8),
                "colors": gymnasium.spaces.Box(0, _COLORS - 1, (SIDE, SIDE), np.uint8),
                "status": gymnasium.spaces.Box(-np.inf, np.inf, (len(STATUS_FEATURES),), np.float32),
                "message": gymnasium.spaces.Box(0, 255, nethack.MESSAGE_SHAPE, np.uint8),
            }
        )
        self._chars = MapCrop(SIDE, ord(" "), np.uint8)
        self._colors = MapCrop(SIDE, 0, np.uint8)

    def write(self, raw: dict[str, np.ndarray], out: dict[str, np.ndarray]) -> None:
        """Writes one observation into `out`, whose arrays have the shapes and dtypes of `space`."""
        status = raw["blstats"].tolist()
        x, y = status[0], status[1]
        self._chars.write(raw["chars"], x, y, out["chars"])
        self._colors.write(raw["colors"], x, y, out["colors"])
        out["status"][...] = status_features(status)
        out["message"][...] = raw["message"]
