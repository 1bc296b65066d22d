"""The baseline without Ray and without our rollout and learning code: NLE's own environments, one network, plain loops.

It is what one writes by hand for one process. The network, what it sees of a game and the settings are ours, so that
what differs is the code around them. There is no caption, no episode statistics and no recovery from a fault.
"""

from __future__ import annotations

import numpy as np
import torch
from nle.env.tasks import NetHackScore
from torch import nn

from oni_ray.config import Config
from oni_ray.envs.nethack import ACTION_KEYS
from oni_ray.envs.observations import GlyphCropView
from oni_ray.policy.network import ActorCritic, NetworkSpec, network_sizes
from oni_ray.rollout.games import make_view


def make_game(max_episode_steps: int) -> NetHackScore:
    """NLE's own environment of the score task, with our actions and nothing recorded."""
    return NetHackScore(
        actions=ACTION_KEYS,
        observation_keys=GlyphCropView.raw_keys,
        max_episode_steps=max_episode_steps,
        save_ttyrec_every=0,
    )


class BareLoop:
    """B games and a network in one process. The arrays of a train batch are allocated once.

    A batch is [T+1, F * B]: F fragments of T steps side by side, so that every game is in it F times. Row T of a
    fragment is row 0 of the next.
    """

    def __init__(self, config: Config) -> None:
        policy, rollout = config.policy, config.rollout
        torch.manual_seed(config.run.seed)
        self._settings = config.algorithm
        self._reward_scale = config.reward.extrinsic_coefficient
        self._length, self._columns = rollout.fragment_length, rollout.envs_per_runner
        self._fragments = self._settings.batch_size // (self._length * self._columns)
        self._view = make_view(policy)
        self.network = ActorCritic(NetworkSpec(self._view.space, len(ACTION_KEYS), **network_sizes(policy)))
        self._optimizer = torch.optim.Adam(
            self.network.parameters(), self._settings.lr, eps=self._settings.adam_eps, foreach=True
        )
        self._games = [make_game(config.env.max_episode_steps) for _ in range(self._columns)]
        self._allocate()
        for b, game in enumerate(self._games):
            game.seed(config.run.seed, b)
            raw, _ = game.reset()
            self._view.write(raw, self._row(self._length, b - self._columns))
        self._resets[self._length] = True

    def _allocate(self) -> None:
        steps, width = self._length, self._fragments * self._columns
        self._observations = {
            name: torch.from_numpy(np.zeros((steps + 1, width, *space.shape), space.dtype))  # type: ignore[misc]
            for name, space in self._view.space.spaces.items()
        }
        self._arrays = {name: tensor.numpy() for name, tensor in self._observations.items()}
        self._resets = torch.zeros(steps + 1, width, dtype=torch.bool)
        self._actions = torch.zeros(steps, width, dtype=torch.int64)
        self._logp = torch.zeros(steps, width)
        self._rewards = torch.zeros(steps, width)
        self._state_in = self.network.initial_state(width)
        self._state = self.network.initial_state(self._columns)

    @torch.inference_mode()
    def collect(self, fragment: int = 0) -> int:
        """Plays T steps of every game into the columns of `fragment`; returns the env steps."""
        begin = fragment * self._columns
        columns = slice(begin, begin + self._columns)
        before = (fragment - 1) % self._fragments * self._columns
        for tensor in (*self._observations.values(), self._resets):
            tensor[0, columns] = tensor[self._length, before : before + self._columns]
        for name, value in self._state.items():
            self._state_in[name][columns] = value
        for t in range(self._length):
            rows = {name: tensor[t : t + 1, columns] for name, tensor in self._observations.items()}
            logits, _, self._state = self.network(rows, self._state, self._resets[t : t + 1, columns])
            log_probs = logits[0].log_softmax(-1)
            chosen = torch.multinomial(log_probs.exp(), 1)
            self._actions[t, columns] = chosen[:, 0]
            self._logp[t, columns] = log_probs.gather(1, chosen)[:, 0]
            rewards, ended = [], []
            for b, action in enumerate(chosen[:, 0].tolist()):
                raw, reward, terminated, truncated, _ = self._games[b].step(action)
                rewards.append(reward * self._reward_scale)
                ended.append(terminated or truncated)
                if ended[-1]:
                    raw, _ = self._games[b].reset()
                self._view.write(raw, self._row(t + 1, begin + b))
            self._rewards[t, columns] = torch.tensor(rewards)
            self._resets[t + 1, columns] = torch.tensor(ended)
        return self._length * self._columns

    def train(self) -> tuple[int, float]:
        """Collects a batch and takes one gradient step on it; env steps played and the loss."""
        steps = sum(self.collect(fragment) for fragment in range(self._fragments))
        return steps, self._learn()

    def _learn(self) -> float:
        settings = self._settings
        logits, values, _ = self.network(self._observations, self._state_in, self._resets)
        log_probs = logits[:-1].log_softmax(-1)
        logp = log_probs.gather(-1, self._actions.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        ratio = (logp.detach() - self._logp).exp()
        rho, c = ratio.clamp(max=settings.vtrace_rho), ratio.clamp(max=settings.vtrace_c)
        discounts = settings.gamma * (~self._resets[1:]).float()
        targets, advantages = vtrace(self._rewards, values.detach(), discounts, rho, c)
        policy_loss = -(logp * rho * advantages).mean()
        value_loss = 0.5 * (targets - values[:-1]).square().mean()
        loss = policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * entropy
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), settings.grad_norm)
        self._optimizer.step()
        return loss.item()

    def _row(self, t: int, column: int) -> dict[str, np.ndarray]:
        return {name: array[t, column] for name, array in self._arrays.items()}


def vtrace(
    rewards: torch.Tensor, values: torch.Tensor, discounts: torch.Tensor, rho: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value targets and advantages of V-trace, [T, B].

    `values` are [T+1, B], everything else [T, B]; `discounts` are 0 where a game ended, `rho` and `c` bounded ratios.
    """
    delta = rho * (rewards + discounts * values[1:] - values[:-1])
    corrections = torch.zeros_like(values)
    for t in reversed(range(len(rewards))):
        corrections[t] = delta[t] + discounts[t] * c[t] * corrections[t + 1]
    targets = values + corrections
    return targets[:-1], rewards + discounts * targets[1:] - values[:-1]
