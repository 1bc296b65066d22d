"""The figures of a run, by name: what each means, and how one row of them is read from the algorithm and the actors.

One table serves progress.csv, TensorBoard, the display, the summary and docs/metrics.md
(`python -m oni_ray.telemetry.metrics` prints the latter).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from oni_ray.telemetry.phases import LEARNER_PHASES, RUNNER_PHASES

RUNNER_SECONDS = {phase: f"runner_{phase}_s" for phase in RUNNER_PHASES}
LEARNER_SECONDS = {phase: f"learner_{phase}_s" for phase in LEARNER_PHASES}

METRICS: dict[str, str] = {
    "seconds": "Seconds of training, over every resume, without start-up.",
    "env_steps": "Env steps sampled in all.",
    "env_steps_per_s": "Env steps a second since the last row.",
    "env_steps_trained": "Env steps that entered a gradient.",
    "env_steps_dropped": "Env steps whose batch came too late and was dropped.",
    "policy_updates": "Train batches learned from; the policy's version.",
    "episodes": "Episodes ended.",
    "return_mean": "Mean raw task return of the latest episodes, before a_ext.",
    "intrinsic_return_mean": "Mean intrinsic return of the latest episodes, before a_int.",
    "length_mean": "Mean env steps of the latest episodes.",
    "depth_mean": "Mean deepest dungeon level reached in the latest episodes.",
    "experience_level_mean": "Mean experience level at the end of the latest episodes.",
    "gold_mean": "Mean gold at the end of the latest episodes.",
    "scout_mean": "Mean map tiles seen in the latest episodes.",
    "score_mean": "Mean in-game score at the end of the latest episodes.",
    "monsters_killed_mean": "Mean monsters the hero killed in the latest episodes, by the game's messages.",
    "success_rate": "Share of the latest episodes that met the task's goal, of continual tasks too.",
    "deaths": "Episodes ended by death.",
    "step_limits": "Episodes cut at the step limit.",
    "aborted": "Episodes whose game broke off.",
    "successes": "Episodes that met the task's goal, of continual tasks too.",
    "envs_replaced": "Environments that raised and were replaced by new ones.",
    "intrinsic_reward_mean": "Mean of r_int / N^beta over the last train batch, before a_int (rnd: of r_int).",
    "extrinsic_reward_mean": "Mean task reward over the last train batch, before a_ext.",
    "reward_mean": "Mean of the reward that trained the policy, a_ext * r_ext + a_int * r_int / N^beta.",
    "intrinsic_reward_sum": "Sum of r_int(c) / N^beta over all train batches.",
    "reward_version": "Version of the reward function used in the last train batch; 0: none yet, or no versions.",
    "reward_age_s": "Seconds since the learner last took over a newer reward function.",
    "reward_drift": "Mean absolute change of known captions' rewards at the last change of the reward function.",
    "policy_lag_mean": "Policy updates between acting and learning, mean over the last batch.",
    "policy_lag_max": "The same, the largest of the last batch.",
    "weights_seq_no_min": "Oldest policy version that a runner played its last fragment with.",
    "policy_loss": "Policy loss of the last update.",
    "value_loss": "Value loss of the last update.",
    "entropy": "Mean entropy of the policy in the last batch, nats.",
    "grad_norm": "Global gradient norm before clipping.",
    "empty_caption_share": "Share of env steps with an empty caption.",
    "captions_met": "Distinct captions met. met = labelled + queued + invalid + dropped.",
    "captions_labelled": "Captions with a label.",
    "captions_queued": "Captions waiting for an answer, lent ones included.",
    "captions_invalid": "Captions whose answer could not be read, set aside.",
    "captions_dropped": "Captions dropped because the queue was full, and not met again.",
    "captions_lost": "Captions a runner had to forget because the store was gone too long.",
    "labels_helpful": "Captions labelled helpful.",
    "labels_not_helpful": "Captions labelled not helpful.",
    "pairs_answered": "Pairs of captions answered (ranking).",
    "pairs_neither": "Pairs of which neither caption is better, order-dependent ones included.",
    "order_dependent_share": "Share of the answered pairs whose answer depended on the order; they count as neither.",
    "corrections": "Labels that a person gave in labels/corrections.jsonl.",
    "texts_asked": "Questions answered by the language model since the start or resume (sentences if split, or pairs).",
    "budget_left": "Labels that may still be asked for (annotation.budget, annotation.budget_per_env_step).",
    "captions_per_s": "Questions answered a second, over the last half minute.",
    "reward_labels": "Labels that the reward model has taken.",
    "reward_model_age_s": "Seconds since the reward model last published.",
    "held_out_accuracy": "Accuracy of the reward model on labels it never trains on.",
    "held_out_balanced_accuracy": "The same, averaged over the classes.",
    "reward_loss": "Training loss of the reward model, or of rnd's predictor, at its last step.",
    "phi_mean": "Running mean of phi, by which the ranking reward is normalised.",
    "phi_deviation": "Running standard deviation of phi, by which the ranking reward is normalised.",
    **{name: f"Seconds that all runners spent {RUNNER_PHASES[phase]}." for phase, name in RUNNER_SECONDS.items()},
    **{name: f"Seconds that the learner spent {LEARNER_PHASES[phase]}." for phase, name in LEARNER_SECONDS.items()},
}

# Figures that are 0 when nothing has happened; the others are unknown until they are measured.
COUNTERS = [
    "env_steps",
    "env_steps_trained",
    "env_steps_dropped",
    "policy_updates",
    "episodes",
    "deaths",
    "step_limits",
    "aborted",
    "successes",
    "envs_replaced",
    "intrinsic_reward_mean",
    "intrinsic_reward_sum",
    "policy_lag_mean",
    "reward_version",
    "captions_met",
    "captions_labelled",
    "captions_queued",
    "captions_invalid",
    "captions_dropped",
    "captions_lost",
    "labels_helpful",
    "labels_not_helpful",
    "pairs_answered",
    "pairs_neither",
    "corrections",
    "texts_asked",
    "captions_per_s",
    "reward_labels",
    *RUNNER_SECONDS.values(),
    *LEARNER_SECONDS.values(),
]

_RUNNER = {
    "num_env_steps_sampled_lifetime": "env_steps",
    "num_episodes_lifetime": "episodes",
    "empty_caption_share": "empty_caption_share",
    "captions_lost_lifetime": "captions_lost",
    "envs_replaced_lifetime": "envs_replaced",
}
_EPISODE_MEANS = {
    "extrinsic_return": "return_mean",
    "length": "length_mean",
    "depth": "depth_mean",
    "experience_level": "experience_level_mean",
    "gold": "gold_mean",
    "scout": "scout_mean",
    "score": "score_mean",
    "monsters_killed": "monsters_killed_mean",
    "success": "success_rate",
}
_ENDS = {"death": "deaths", "step_limit": "step_limits", "aborted": "aborted"}
_LEARNER = (
    "intrinsic_reward_mean",
    "extrinsic_reward_mean",
    "reward_mean",
    "intrinsic_reward_sum",
    "reward_version",
    "reward_age_s",
    "reward_drift",
    "reward_loss",
    "policy_lag_mean",
    "policy_lag_max",
)
_MODULE = {
    "policy_loss": "policy_loss",
    "value_loss": "value_loss",
    "entropy": "entropy",
    "gradients_default_optimizer_global_norm": "grad_norm",
    "weights_seq_no": "policy_updates",
}
_COUNTS = {
    "met": "captions_met",
    "labelled": "captions_labelled",
    "queued": "captions_queued",
    "invalid": "captions_invalid",
    "dropped": "captions_dropped",
    "helpful": "labels_helpful",
    "not_helpful": "labels_not_helpful",
    "pairs_answered": "pairs_answered",
    "pairs_neither": "pairs_neither",
    "corrections": "corrections",
    "asked": "texts_asked",
}
_REWARD = {
    "held_out_accuracy": "held_out_accuracy",
    "held_out_balanced_accuracy": "held_out_balanced_accuracy",
    "loss": "reward_loss",
    "phi_mean": "phi_mean",
    "phi_deviation": "phi_deviation",
}


def figure(value: float | None, form: str) -> str:
    """`value` in the format `form`, or a dash where it is unknown."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def read_result(result: dict[str, Any]) -> dict[str, float]:
    """The figures in a result of RLlib's `Algorithm.train()`."""
    row: dict[str, float] = {}
    runners = result.get("env_runners", {})
    _copy(row, runners, _RUNNER.items())
    _copy(row, runners.get("phase_seconds", {}), RUNNER_SECONDS.items())
    _copy(row, runners.get("episode_ends", {}), _ENDS.items())
    _copy(row, runners.get("episode_sums", {}), [("success", "successes")])  # a continual task's do not end by it
    versions = runners.get("weights_seq_no_of_runner", {})
    if versions:
        row["weights_seq_no_min"] = float(min(versions.values()))
    learners = result.get("learners", {})
    _copy(row, learners, ((name, name) for name in _LEARNER))
    _copy(row, learners.get("phase_seconds", {}), LEARNER_SECONDS.items())
    _copy(row, learners.get("__all_modules__", {}), [("num_env_steps_trained_lifetime", "env_steps_trained")])
    _copy(row, learners.get("default_policy", {}), _MODULE.items())
    _copy(row, result.get("learner_group", {}), [("learner_group_ts_dropped_lifetime", "env_steps_dropped")])
    return row


class EpisodeMeans:
    """Means over the latest episodes, from running sums: at least `window` episodes once so many have ended."""

    def __init__(self, window: int = 100) -> None:
        self._window = window
        self._history: deque[tuple[float, dict[str, float]]] = deque([(0.0, {})])

    def update(self, count: float, sums: dict[str, float]) -> dict[str, float]:
        """Takes over the sums after `count` episodes; returns the mean of each since about `window` episodes ago."""
        if count > self._history[-1][0]:
            self._history.append((count, dict(sums)))
        while len(self._history) > 2 and count - self._history[1][0] >= self._window:
            self._history.popleft()
        before, earlier = self._history[0]
        latest, now = self._history[-1]
        if latest == before:
            return {}
        return {name: (value - earlier.get(name, 0.0)) / (latest - before) for name, value in now.items()}


class EpisodeFigures:
    """The episode means of a run: task statistics from the runners, intrinsic return from the learner."""

    def __init__(self) -> None:
        self._task = EpisodeMeans()
        self._intrinsic = EpisodeMeans()

    def read(self, result: dict[str, Any]) -> dict[str, float]:
        """The figures in a result of RLlib's `Algorithm.train()`."""
        runners, learners = result.get("env_runners", {}), result.get("learners", {})
        means = self._task.update(
            float(runners.get("num_episodes_lifetime", 0)),
            {name: float(value) for name, value in runners.get("episode_sums", {}).items()},
        )
        row = {_EPISODE_MEANS[name]: value for name, value in means.items()}
        count, total = learners.get("intrinsic_returns"), learners.get("intrinsic_return_sum")
        if count:
            row["intrinsic_return_mean"] = self._intrinsic.update(float(count), {"x": float(total)}).get("x", 0.0)
        return row


def read_counts(counts: Any) -> dict[str, float]:
    """The figures in a `StoreCounts`."""
    row = {name: float(getattr(counts, field)) for field, name in _COUNTS.items()}
    if counts.pairs_answered:
        row["order_dependent_share"] = counts.order_dependent / counts.pairs_answered
    if counts.budget_left is not None:
        row["budget_left"] = float(counts.budget_left)
    return row


def read_reward_status(status: Any) -> dict[str, float]:
    """The figures in a `RewardStatus`."""
    row = {"reward_labels": float(status.labels), "reward_model_age_s": float(status.stale_s)}
    _copy(row, status.metrics, _REWARD.items())
    return row


def _copy(row: dict[str, float], source: dict[str, Any], names: Iterable[tuple[str, str]]) -> None:
    for theirs, ours in names:
        value = source.get(theirs)
        if value is not None and not math.isnan(float(value)):
            row[ours] = float(value)


def metrics_reference() -> str:
    """The text of docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Generated from `oni_ray/telemetry/metrics.py` by `make docs`; do not edit by hand.",
        "These are the columns of `progress.csv` and the tags in TensorBoard. Means over episodes cover about the last",
        "hundred. `summary.json` holds the last row's figures, totals of the run and `peak_memory_mb` by process.",
        "",
        "| metric | meaning |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in METRICS.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(metrics_reference(), end="")
