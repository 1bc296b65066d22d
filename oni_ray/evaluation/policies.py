"""What plays: the policy of a checkpoint, or random actions, in a form that travels to the actors which play it.

A policy is rebuilt from its run's configuration and the weights in the checkpoint's files; no RLlib algorithm, learner
or optimiser is made for it. Only the process that loads it imports RLlib: the network alone is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oni_ray.checkpoint import MANIFEST, Checkpoints, load_weights, mismatch
from oni_ray.config import Config, load_config
from oni_ray.errors import UserError
from oni_ray.policy.network import ActorCritic
from oni_ray.rollout.games import Games
from oni_ray.run_folder import CONFIG, open_run_folder

RANDOM = "random"


@dataclass(frozen=True)
class Policy:
    """A policy and the configuration that it plays under.

    Attributes:
        config: the run's configuration, with the changes asked for; the task comes from it.
        network: the network with the checkpoint's weights; None plays random actions.
        run: the run folder, None for random actions and for a checkpoint that was copied alone.
        checkpoint: the checkpoint folder, None for random actions.
    """

    config: Config
    network: ActorCritic | None = None
    run: Path | None = None
    checkpoint: Path | None = None

    @property
    def name(self) -> str:
        """`random`, or run and checkpoint, or a checkpoint alone."""
        if self.checkpoint is None:
            return RANDOM
        return self.checkpoint.name if self.run is None else f"{self.run.name}/{self.checkpoint.name}"


def open_games(config: Config, columns: int) -> Games:
    """Opens `columns` games of the configured task. Raises UserError when there is no such task."""
    rollout = config.rollout.model_copy(update={"envs_per_runner": columns})
    return Games(config.model_copy(update={"rollout": rollout}), np.random.SeedSequence(0))


def load_policy(source: str, overrides: Sequence[str] = ()) -> Policy:
    """The policy that `source` names: `random`, a run folder (its newest checkpoint) or a checkpoint's folder.

    Args:
        source: what plays.
        overrides: `section.key=value` on top of the run's configuration, such as env.task=oracle.

    Raises:
        UserError: there is no such checkpoint or task, or they do not fit together.
    """
    if source == RANDOM:
        config = load_config(None, overrides)
        open_games(config, 1).close()  # a task that cannot be played is found here, not in an actor
        return Policy(config)
    run, checkpoint = find_checkpoint(Path(source).absolute())
    home = checkpoint if (checkpoint / CONFIG).is_file() else run  # what it was trained with, where it tells
    if home is None:
        raise UserError(
            f"The checkpoint {checkpoint} has no {CONFIG} and lies in no run folder, so its network is unknown; "
            f"put the run's {CONFIG} there."
        )
    config, _ = open_run_folder(str(home), list(overrides))
    return Policy(config, load_network(config, checkpoint), run, checkpoint)


def load_network(config: Config, checkpoint: Path) -> ActorCritic:
    """The network of the configuration with the checkpoint's weights, on the CPU.

    Raises:
        UserError: the checkpoint is damaged, or its weights do not fit the task's actions or the policy settings.
    """
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    from oni_ray.policy.module import NETWORK, ActorCriticModule
    from oni_ray.policy.network import network_sizes

    # Ray warns of an argument that every RLModule's own constructor uses.
    logging.getLogger("ray._common.deprecation").setLevel(logging.ERROR)
    weights = load_weights(checkpoint)
    games = open_games(config, 1)
    module: Any = RLModuleSpec(
        module_class=ActorCriticModule,
        observation_space=games.observation_space,
        action_space=games.action_space,
        model_config={NETWORK: network_sizes(config.policy)},
        inference_only=True,
    ).build()
    games.close()
    try:
        module.set_state(weights)
    except (RuntimeError, KeyError, ValueError) as error:
        raise UserError(
            f"The weights of {checkpoint} do not fit a policy for task {config.env.task!r} ({mismatch(error)}); "
            "give the task and policy settings that the run was trained with."
        ) from None
    return module.network.eval()


def find_checkpoint(path: Path) -> tuple[Path | None, Path]:
    """Run folder and checkpoint folder of either; no run folder of a checkpoint that was copied alone.

    Raises UserError when there is no checkpoint.
    """
    if (path / MANIFEST).is_file():
        run = path.parent.parent
        return run if (run / CONFIG).is_file() else None, path
    if (path / CONFIG).is_file():
        latest = Checkpoints(path, keep=1).latest()
        if latest is None:
            raise UserError(
                f"The run {path} has no checkpoint yet; one is written every checkpoint.interval_s and at the end."
            )
        return path, latest
    raise UserError(
        f"{path} is neither a run folder (with {CONFIG}) nor a checkpoint (with {MANIFEST}); "
        "give one of them, or `random`."
    )
