"""A small policy for the games of a test, whose outputs depend visibly on its inputs and recurrent state."""

from __future__ import annotations

import torch

from oni_ray.policy.network import ActorCritic, NetworkSpec
from oni_ray.rollout.games import Games


def small_network(games: Games, core: str = "lstm") -> ActorCritic:
    """An actor-critic for what `games` show and take, equal for equal arguments."""
    torch.manual_seed(0)
    network = ActorCritic(NetworkSpec(games.observation_space, int(games.action_space.n), core=core, hidden_size=32))
    with torch.no_grad():  # the initial policy is all but uniform; make mistakes in the state visible
        network.heads.weight.mul_(200)
    return network
