"""The learner connector: fragments -> one time-first batch of tensors.

It replaces RLlib's default pieces (`add_default_connectors_to_learner_pipeline=False`), because fragments need no
zero padding and no per-episode objects. Captions are text, so they travel beside the tensors in `shared_data`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from oni_ray.policy.module import RESETS
from oni_ray.rollout.fragment import Fragment

TRUNCATION_VALUES = "truncation_values"
CAPTIONS = "captions"
CAPTION_INDEX = "caption_index"
CAPTION_COUNT = "caption_count"


class FragmentsToBatch(ConnectorV2):
    """Joins the columns of all fragments: arrays [T(+1), B, ...], where B is the sum of the fragments' columns."""

    def __call__(  # type: ignore[override]  # fragments take the place of episodes
        self, *, episodes: Sequence[Fragment], shared_data: dict[str, Any] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        captions, index = merge_captions(episodes)
        if shared_data is not None:
            shared_data[CAPTIONS] = captions
            shared_data[CAPTION_INDEX] = index
            shared_data[CAPTION_COUNT] = np.concatenate([f.caption_count for f in episodes], axis=1)
        observations = episodes[0].observations
        return {
            DEFAULT_MODULE_ID: {
                Columns.OBS: {k: _join([f.observations[k] for f in episodes], axis=1) for k in observations},
                Columns.STATE_IN: {k: _join([f.state_in[k] for f in episodes], axis=0) for k in episodes[0].state_in},
                RESETS: _join([f.resets for f in episodes], axis=1),
                Columns.ACTIONS: _join([f.actions for f in episodes], axis=1),
                Columns.ACTION_LOGP: _join([f.behaviour_logp for f in episodes], axis=1),
                Columns.REWARDS: _join([f.rewards for f in episodes], axis=1),
                Columns.TERMINATEDS: _join([f.terminated for f in episodes], axis=1),
                Columns.TRUNCATEDS: _join([f.truncated for f in episodes], axis=1),
                TRUNCATION_VALUES: _join([f.truncation_values for f in episodes], axis=1),
            }
        }


def merge_captions(fragments: Sequence[Fragment]) -> tuple[list[str], np.ndarray]:
    """The distinct captions of all fragments and, [T, B] int64, each step's index among them."""
    position: dict[str, int] = {}
    columns = []
    for fragment in fragments:
        local = np.array([position.setdefault(c, len(position)) for c in fragment.captions], dtype=np.int64)
        columns.append(local[fragment.caption_index])
    return list(position), np.concatenate(columns, axis=1)


def _join(arrays: list[np.ndarray], axis: int) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays, axis=axis))
