"""The run configuration: one pydantic section an owner, a sentence for every field, defaults that suit a laptop.

Nothing heavy is imported here, so `--help`, `--dry-run` and a mistaken key answer at once. `docs/configuration.md`
is generated from the field descriptions below (`python -m oni_ray.config`), and a run folder holds the resolved form.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from oni_ray.errors import UserError


class Section(BaseModel):
    """A group of settings; unknown keys are refused and values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSection(Section):
    """Where the results go and which seed fixes the randomness."""

    name: str | None = Field(None, description="Name of the run folder; a time stamp with the experiment when unset.")
    folder: str = Field("runs", description="Folder that holds the run folders; relative to the working directory.")
    seed: int = Field(1, ge=0, description="Seed of games, network initialisation and action sampling.")


class StopSection(Section):
    """When training ends; whichever limit is reached first."""

    env_steps: int = Field(1_000_000, gt=0, description="Env steps in all, counted over every resume.")
    seconds: float | None = Field(None, gt=0, description="Seconds of training of this process, without start-up.")


class EnvSection(Section):
    """The game and its task."""

    task: str = Field("score", description="Task name: what is rewarded and when an episode ends.")
    max_episode_steps: int = Field(5000, gt=0, description="Env steps after which an episode is cut (truncated).")


class RolloutSection(Section):
    """How experience is collected."""

    runners: int = Field(2, ge=1, description="Env runner actors, a process each.")
    envs_per_runner: int = Field(16, ge=1, description="Games stepped by one runner with one batched forward pass.")
    fragment_length: int = Field(32, ge=1, description="Steps of one fragment, T.")


class PolicySection(Section):
    """The network."""

    encoder: Literal["glyph_crop"] = Field("glyph_crop", description="How an observation becomes a vector.")
    crop: int = Field(9, ge=3, le=21, description="Side of the square map crop around the hero, in tiles; odd.")
    glyph_embedding: int = Field(16, ge=1, description="Width of a glyph's embedding.")
    channels: int = Field(32, ge=1, description="Channels of the two convolutions over the crop.")
    message_words: int = Field(16, ge=1, description="Words of the message that the policy reads.")
    message_vocabulary: int = Field(4096, ge=2, le=32768, description="Hash buckets for message words.")
    message_embedding: int = Field(32, ge=1, description="Width of a message word's embedding.")
    core: Literal["lstm", "gru"] = Field("lstm", description="Recurrent core.")
    hidden_size: int = Field(256, ge=1, description="Units of the recurrent core.")

    @model_validator(mode="after")
    def _crop_is_odd(self) -> PolicySection:
        if self.crop % 2 == 0:
            raise ValueError(f"policy.crop={self.crop} must be odd, so that the hero stands in the middle")
        return self


class AlgorithmSection(Section):
    """The policy's learning rule; defaults are the reference's."""

    name: Literal["impala", "appo", "ppo"] = Field(
        "appo", description="impala: V-trace; appo: clipped PPO loss with V-trace; ppo: synchronous, GAE, epochs."
    )
    lr: float = Field(1e-4, gt=0, description="Adam's learning rate.")
    adam_eps: float = Field(1e-6, gt=0, description="Adam's epsilon.")
    gamma: float = Field(0.99, ge=0, le=1, description="Discount factor.")
    batch_size: int = Field(1024, ge=1, description="Env steps of a train batch; a multiple of one runner's fragment.")
    entropy_coefficient: float = Field(0.003, ge=0, description="Weight of the entropy bonus.")
    value_coefficient: float = Field(0.5, ge=0, description="Weight of the value loss.")
    grad_norm: float = Field(4.0, gt=0, description="Global norm to which gradients are clipped.")
    clip: float = Field(0.1, gt=0, description="Clip range of the probability ratio (appo, ppo).")
    vtrace_rho: float = Field(1.0, gt=0, description="Upper bound of the importance weight rho (impala, appo).")
    vtrace_c: float = Field(1.0, gt=0, description="Upper bound of the trace weight c (impala, appo).")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="Lambda of generalised advantage estimation (ppo).")
    epochs: int = Field(4, ge=1, description="Passes over a train batch (ppo).")
    minibatches: int = Field(4, ge=1, description="Minibatches of whole fragments in a pass (ppo).")
    normalize_advantages: bool = Field(True, description="Scale advantages to mean 0, deviation 1 (appo, ppo).")


class RewardSection(Section):
    """The reward that trains the policy: a_ext * r_ext + a_int * r_int(caption) / N_episode(caption) ** beta."""

    type: Literal["none", "retrieval", "classification"] = Field(
        "classification", description="Intrinsic reward: none, the labels themselves, or a classifier of them."
    )
    extrinsic_coefficient: float = Field(0.1, ge=0, description="a_ext, the weight of the task's reward.")
    intrinsic_coefficient: float = Field(0.4, ge=0, description="a_int, the weight of the intrinsic reward.")
    count_exponent: float = Field(3.0, ge=0, description="beta; repeats of a caption in an episode count 1/N^beta.")
    threshold: float = Field(0.5, ge=0, le=1, description="eta: p(helpful) above which the reward is 1.")
    lr: float = Field(1e-4, gt=0, description="Adam's learning rate of the reward model.")
    batch_size: int = Field(256, ge=1, description="Labels in a gradient step of the reward model.")
    steps_per_label_batch: int = Field(32, ge=1, description="Gradient steps for each arriving batch of labels.")
    warmup_labels: int = Field(
        25_000, ge=0, description="Labels after which it is one gradient step for each policy update instead."
    )
    held_out_fraction: float = Field(0.1, ge=0, lt=1, description="Share of labels kept for measuring accuracy.")
    publish_interval_s: float = Field(2.0, ge=0, description="Least seconds between two published snapshots.")


class AnnotationSection(Section):
    """What is asked about the captions."""

    goal: str = Field("score", description="Goal by which captions are judged; a name in the prompt file.")
    prompt: str = Field("label_v1", description="Prompt name, or the path of a prompt YAML.")
    split_sentences: bool = Field(
        True, description="Judge sentence by sentence; a caption is helpful if one of its sentences is."
    )
    annotators: int = Field(1, ge=1, description="Annotator actors.")
    batch_size: int = Field(32, ge=1, description="Texts of one lease, asked concurrently.")
    queue_limit: int = Field(100_000, ge=1, description="Most texts waiting; the oldest are dropped and counted.")
    lease_timeout_s: float = Field(180.0, gt=0, description="Seconds after which unanswered work is queued again.")
    runner_memory: int = Field(100_000, ge=1, description="Captions a runner remembers having sent.")
    reuse: str | None = Field(None, description="Run folder whose labels of the same question are used at once.")


class LLMSection(Section):
    """Who answers."""

    backend: Literal["serve", "openai"] = Field(
        "serve", description="serve: deploy `serve_config` on this cluster; openai: any OpenAI-compatible URL."
    )
    serve_config: str = Field("serve_configs/smollm2_cpu.yaml", description="Serve YAML to deploy (backend serve).")
    base_url: str | None = Field(None, description="For example http://127.0.0.1:8000/v1 (backend openai).")
    model: str | None = Field(None, description="Model id at that URL (backend openai).")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key (backend openai).")
    timeout_s: float = Field(60.0, gt=0, description="Seconds to wait for the answers to one lease.")


class ResourcesSection(Section):
    """What is asked of Ray's scheduler."""

    address: str | None = Field(
        None, description="Ray cluster to join (`auto` or host:port); unset joins $RAY_ADDRESS or starts one here."
    )
    num_cpus: int = Field(8, ge=1, description="Logical CPUs of a cluster started here; more than cores is fine.")
    runner_cpus: float = Field(1.0, ge=0, description="CPUs of an env runner.")
    learner_gpus: float = Field(0.0, ge=0, description="GPUs of the learner; 0 trains on the CPU.")
    learner_process: bool = Field(False, description="Learner in an actor of its own instead of the driver.")
    reward_gpus: float = Field(0.0, ge=0, description="GPUs (a fraction is fine) of the reward model.")
    torch_threads: int = Field(1, ge=1, description="Torch threads of the learner and of the reward model.")
    dashboard: bool = Field(False, description="Ray dashboard of a cluster started here, on 127.0.0.1:8265.")
    object_store_mb: int = Field(512, ge=80, description="Object store of a cluster started here, in MB.")


class CheckpointSection(Section):
    """How progress is kept."""

    interval_s: float = Field(300.0, gt=0, description="Seconds between checkpoints; one is always made at the end.")
    keep: int = Field(3, ge=1, description="Newest checkpoints kept.")


class LogSection(Section):
    """What is shown and written while training."""

    interval_s: float = Field(5.0, gt=0, description="Seconds between progress lines, and rows of progress.csv.")
    display: Literal["auto", "live", "plain"] = Field("auto", description="Live table on a terminal, lines elsewhere.")
    tensorboard: bool = Field(True, description="Write TensorBoard events into the run folder.")


class DebugSection(Section):
    """Aids for finding faults."""

    synchronous: bool = Field(
        False,
        description="Runner and learner in one process, in order; with reward.type=none equal seeds give equal losses.",
    )


class Config(Section):
    """Everything that defines a run."""

    run: RunSection = RunSection()
    stop: StopSection = StopSection()
    env: EnvSection = EnvSection()
    rollout: RolloutSection = RolloutSection()
    policy: PolicySection = PolicySection()
    algorithm: AlgorithmSection = AlgorithmSection()
    reward: RewardSection = RewardSection()
    annotation: AnnotationSection = AnnotationSection()
    llm: LLMSection = LLMSection()
    resources: ResourcesSection = ResourcesSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()
    debug: DebugSection = DebugSection()

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        steps = self.rollout.envs_per_runner * self.rollout.fragment_length
        nearest = max(1, round(self.algorithm.batch_size / steps)) * steps
        if self.algorithm.batch_size % steps:
            raise ValueError(
                f"algorithm.batch_size={self.algorithm.batch_size} must be a multiple of rollout.envs_per_runner * "
                f"rollout.fragment_length = {steps}; set it to {nearest}"
            )
        columns = self.algorithm.batch_size // self.rollout.fragment_length
        if self.algorithm.name == "ppo" and columns % self.algorithm.minibatches:
            raise ValueError(
                f"algorithm.minibatches={self.algorithm.minibatches} must divide the {columns} trajectories of a batch"
            )
        if self.llm.backend == "openai" and not (self.llm.base_url and self.llm.model):
            raise ValueError("llm.backend=openai needs llm.base_url and llm.model; set both, or use llm.backend=serve")
        if self.annotation.lease_timeout_s <= 2 * self.llm.timeout_s:
            raise ValueError(
                f"annotation.lease_timeout_s={self.annotation.lease_timeout_s:g} must be more than twice "
                f"llm.timeout_s={self.llm.timeout_s:g}, or work is taken from annotators that are still asking"
            )
        if self.resources.learner_gpus > 0 and not self.resources.learner_process:
            raise ValueError("resources.learner_gpus needs resources.learner_process=true: an actor that holds the GPU")
        if self.debug.synchronous and self.resources.learner_process:
            raise ValueError("debug.synchronous runs in one process; set resources.learner_process=false")
        return self


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a YAML file with dotted `section.key=value` overrides on top.

    Raises:
        UserError: a missing or malformed file, an unknown key (the nearest valid one is named) or a bad value.
    """
    values = _read_yaml(Path(path)) if path is not None else {}
    for override in overrides:
        _apply_override(values, override)
    return parse_config(values, source=str(path) if path else "the command line")


def parse_config(values: dict[str, Any], source: str) -> Config:
    """Validates plain values; `source` names them in messages. Raises `UserError`."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{source}: " + "; ".join(_explain(e) for e in error.errors())) from None


def dump_config(config: Config) -> str:
    """The resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(
            f"There is no configuration file {path}; give the path of a YAML such as experiments/quickstart.yaml."
        )
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(
            f"{path} must hold sections such as `reward:` with keys below them, not a {type(values).__name__}."
        )
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise UserError(f"`{override}` is not an override; write section.key=value, for example algorithm.lr=3e-4.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"The value in `{override}` is not valid YAML; put quotes around it.") from None
    if isinstance(value, str) and text == value:  # not quoted: YAML 1.1 reads 3e-4 as text
        with contextlib.suppress(ValueError):
            value = float(value)
    for part in parts[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise UserError(f"`{override}`: {part} is a value, not a section.")
    values[parts[-1]] = value


def _explain(error: Any) -> str:
    location = [str(part) for part in error["loc"]]
    name = ".".join(location)
    if error["type"] == "extra_forbidden":
        return f"unknown key `{name}`{_nearest(location)}"
    if not name:
        return str(error["msg"]).removeprefix("Value error, ")
    message = str(error["msg"]).removeprefix("Value error, ")
    return message if message.startswith(name) else f"{name}={error['input']!r}: {message}"


def _nearest(location: list[str]) -> str:
    """`; did you mean ...?` with the closest dotted key, the closest in the same section first."""
    section: Any = Config
    for part in location[:-1]:
        section = section.model_fields[part].annotation
    close = difflib.get_close_matches(location[-1], section.model_fields, n=1, cutoff=0.5)
    if close:
        return f"; did you mean `{'.'.join([*location[:-1], close[0]])}`?"
    everywhere = {f"{s}.{k}": k for s, f in Config.model_fields.items() for k in f.annotation.model_fields}  # type: ignore[union-attr]
    close = difflib.get_close_matches(location[-1], everywhere.values(), n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{next(d for d, k in everywhere.items() if k == close[0])}`?"
    return f"; valid here: {', '.join(section.model_fields)}"


def configuration_reference() -> str:
    """The text of docs/configuration.md: a table of keys, types, defaults and meanings for each section."""
    lines = [
        "# Configuration",
        "",
        "Generated from the field descriptions in `oni_ray/config.py` by `make docs`; do not edit by hand.",
        "A YAML file holds sections, the command line holds overrides: "
        "`oni-ray train experiments/quickstart.yaml algorithm.lr=3e-4`.",
    ]
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        lines += ["", f"## {name}", "", section.__doc__, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for key, info in section.model_fields.items():
            kind = info.annotation.__name__ if isinstance(info.annotation, type) else str(info.annotation)
            kind = kind.replace("typing.", "").replace("|", "\\|")
            default = "unset" if info.default is None else info.default
            lines.append(f"| `{name}.{key}` | {kind} | `{default}` | {info.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(configuration_reference(), end="")
