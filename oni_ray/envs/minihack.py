"""MiniHack's environments as captioned tasks: any registered id, with its own actions, reward and step limit.

MiniHack's environment itself plays: its `step` decides rewards and ends. What it drives is a `WatchedGame`, so that
pages which it skips reach the caption. It would quit the game at its step limit; here the game runs on until the next
reset, so that the last observation is still there to bootstrap a value from. Levels are compiled without its shell
script, which takes four times as long, at every reset of a maze.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from nle.nethack.nethack import HACKDIR

from oni_ray.envs.captions import CaptionFunction, message
from oni_ray.envs.episode import EpisodeEnd
from oni_ray.envs.extension import nearest_name
from oni_ray.envs.game import WatchedGame
from oni_ray.envs.journal import EpisodeJournal
from oni_ray.errors import UserError

DEFAULT_OBSERVATION_KEYS = ("glyphs", "blstats", "message")


def check_minihack_id(env_id: str) -> None:
    """Loads MiniHack and looks `env_id` up. Raises UserError if either fails; names the nearest id."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports a deprecated package
            import minigrid  # noqa: F401  most of MiniHack's mazes are laid out by it
            import minihack  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"env.task={env_id} needs MiniHack ({error}); install it with: pip install 'oni_ray[minihack]'."
        ) from None
    if env_id not in gymnasium.registry:
        ids = [name for name in gymnasium.registry if name.startswith("MiniHack-")]
        raise UserError(f"MiniHack has no environment {env_id!r}; {nearest_name(env_id, ids)}")


class MiniHackTask(gymnasium.Env):
    """One MiniHack environment; observations, `info` and reuse of arrays as in `oni_ray.envs.nethack.NetHackTask`.

    The reward is MiniHack's own, usually 1 for the goal and -0.01 for a step that does not advance game time. A
    success is an end that MiniHack calls successful, unless it is penalised (some tasks end by a wrong choice; that
    counts as a death). In the one case of a success on the last step allowed MiniHack itself gives no reward.
    """

    def __init__(
        self,
        *,
        env_id: str,
        max_episode_steps: int = 5000,
        observation_keys: Sequence[str] = DEFAULT_OBSERVATION_KEYS,
        caption: CaptionFunction = message,
        caption_prompts: bool = False,
    ) -> None:
        """
        Args:
            env_id: id registered by MiniHack, for example MiniHack-MultiRoom-N4-v0.
            max_episode_steps: step limit; the environment's own is kept if it is smaller.
            observation_keys, caption, caption_prompts: see `NetHackTask`.
        """
        if max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, not {max_episode_steps}")
        check_minihack_id(env_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MiniGrid's mazes are of an older version, as MiniHack wants them
            made = gymnasium.make(env_id, observation_keys=tuple(observation_keys), disable_env_checker=True)
        env: Any = made.unwrapped
        env._max_episode_steps = min(env._max_episode_steps, max_episode_steps)
        self._env = env
        self._game = WatchedGame(env.nethack, env._observation_keys, caption_prompts)
        self._quit_game = env._quit_game
        env.nethack = self._game
        env._quit_game = lambda observation, done: None
        self._run_script = env._patch_nhdat
        env._patch_nhdat = self._compile_level
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._caption = caption
        self._journal = EpisodeJournal(self._game)
        self._over = True
        self._game_running = False

        self.game_seeds: tuple[int, int] | None = None
        """NetHack's own seeds (core, display) of the current game; None before the first reset."""

    @property
    def actions(self) -> tuple[int, ...]:
        """The key that each action presses."""
        return tuple(self._env.actions)

    @property
    def max_episode_steps(self) -> int:
        """Env steps after which an episode is truncated."""
        return self._env._max_episode_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Starts a new level. Without `seed` it is the next one of the sequence that the last given seed fixes."""
        super().reset(seed=seed, options=options)
        if self._game_running:
            self._quit_game(self._env.last_observation, False)
            self._game_running = False
        core, display, maze = (int(word) for word in self.np_random.integers(0, 2**31 - 1, size=3))
        self.game_seeds = (core, display)
        self._game.set_initial_seeds(core, display, reseed=False)
        if hasattr(self._env, "minigrid_env"):
            # The maze that the coming reset draws is the generator's next one.
            self._env.minigrid_env.reset(seed=maze)
        observation, _ = self._env.reset()
        self._over = False
        self._game_running = True
        self._journal.start()
        return observation, {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        """One action of MiniHack's own action set."""
        if self._over:
            raise RuntimeError("the episode is over: call reset() before step()")
        env, game, journal = self._env, self._game, self._journal
        journal.begin_step(int(env.actions[action]))
        game.forget_pages()
        observation, reward, ended, _, result = env.step(action)
        done = game.done
        journal.end_step(done)
        journal.add_reward(reward)
        info: dict[str, Any] = {"caption": self._caption(game.pages, journal.caption_status(done))}
        if not ended:
            return observation, reward, False, False, info
        end = self._end(result["end_status"], reward)
        self._over = True
        self._game_running = not done
        info["episode"] = journal.statistics(end, end == "success", done)
        terminated = end in ("death", "success")
        return observation, reward, terminated, not terminated, info

    def close(self) -> None:
        """Ends the game and removes its directory."""
        self._over = True
        self._game_running = False
        self._env.close()

    def _compile_level(self, description: str) -> None:
        """Puts a level into the game's data file. Raises CalledProcessError if NetHack's tools refuse it.

        `description` is its text; the name of a file ("*.des") is left to MiniHack, whose constructor made `lib`.
        """
        if description.endswith(".des"):
            self._run_script(description)
            return
        folder = self._game._vardir
        lib = os.path.join(folder, "lib")
        source = os.path.join(lib, "mylevel.des")
        with open(source, "w") as file:
            file.write(description)
        subprocess.run([os.path.join(HACKDIR, "lev_comp"), "mylevel.des"], cwd=lib, check=True, capture_output=True)
        os.unlink(source)
        archive = [os.path.join(HACKDIR, "dlb"), "cf", "nhdat", *sorted(os.listdir(lib))]
        subprocess.run(archive, cwd=lib, check=True, capture_output=True)
        os.replace(os.path.join(lib, "nhdat"), os.path.join(folder, "nhdat"))

    def _end(self, status: Any, reward: float) -> EpisodeEnd:
        """Why the episode ended, from MiniHack's status, which tells a time limit from an end of the game."""
        outcomes = self._env.StepStatus
        if status == outcomes.ABORTED:
            return "step_limit"
        if status == outcomes.TASK_SUCCESSFUL:
            return "success" if reward >= self._env.penalty_step else "death"
        return self._game.end()
