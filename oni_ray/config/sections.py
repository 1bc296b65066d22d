"""The sections of the configuration and which combinations of values make sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

CAPTION_PROMPT, PAIR_PROMPT = "label_v2", "rank_v1"


def _absolute(path: str) -> str:
    """Found again by a resume, and by processes with another working directory."""
    return str(Path(path).expanduser().absolute())


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

    task: str = Field(
        "score", description="Task: a name of docs/tasks.md, any MiniHack id, or your own `module:Class`."
    )
    max_episode_steps: int = Field(5000, gt=0, description="Env steps after which an episode is cut (truncated).")
    caption: str = Field("message", description="Caption function: a registered name, or `module:function`.")
    caption_status: tuple[Literal["depth", "hp", "gold", "hunger"], ...] = Field(
        (), description="Status-line fields that are added to the caption of a step with a message."
    )
    caption_prompts: bool = Field(False, description="Keep the text of y/n prompts and menus in the caption.")


class RolloutSection(Section):
    """How experience is collected."""

    runners: int = Field(2, ge=1, description="Env runner actors, a process each.")
    envs_per_runner: int = Field(16, ge=1, description="Games stepped by one runner with one batched forward pass.")
    fragment_length: int = Field(32, ge=1, description="Steps of one fragment, T.")


class PolicySection(Section):
    """The network."""

    encoder: Literal["glyph_crop", "rendered"] = Field(
        "glyph_crop",
        description="How an observation becomes a vector. glyph_crop: embedded map tiles and message words; rendered: "
        "a picture of the 12x12 characters around the hero and the message's characters, as the reference.",
    )
    crop: int = Field(
        9, ge=3, le=21, description="Side of the square map crop around the hero, in tiles; odd (glyph_crop)."
    )
    glyph_embedding: int = Field(16, ge=1, description="Width of a glyph's embedding (glyph_crop).")
    channels: int = Field(
        32, ge=1, description="Channels of the first convolution; the others have as many, or twice and 4x (rendered)."
    )
    message_words: int = Field(16, ge=1, description="Words of the message that the policy reads (glyph_crop).")
    message_vocabulary: int = Field(4096, ge=2, le=32768, description="Hash buckets for message words (glyph_crop).")
    message_embedding: int = Field(32, ge=1, description="Width of a message word's embedding (glyph_crop).")
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

    type: Literal["none", "retrieval", "classification", "ranking", "motif", "bow", "rnd", "count"] = Field(
        "classification", description="Intrinsic reward; docs/rewards.md has the formula of each."
    )
    extrinsic_coefficient: float = Field(0.1, ge=0, description="a_ext, the weight of the task's reward.")
    intrinsic_coefficient: float = Field(0.4, ge=0, description="a_int, the weight of the intrinsic reward.")
    count_exponent: float = Field(3.0, ge=0, description="beta; repeats of a caption in an episode count 1/N^beta.")
    episodic_count: bool = Field(True, description="Divide by N_episode^beta; false leaves the count out.")
    threshold: float = Field(0.5, ge=0, le=1, description="eta: p(helpful) above which the reward is 1.")
    normalised_threshold: float = Field(
        0.5, description="Normalised reward (in standard deviations) at or below which it is 0 (ranking)."
    )
    normalisation_epsilon: float = Field(1e-5, gt=0, description="Added to the variance before its root (ranking).")
    path: str | None = Field(None, description="Folder of a reward made by `oni-ray fit-reward` (motif).")
    quantile: float = Field(
        0.5, ge=0, lt=1, description="Quantile of the data set's normalised rewards below which it is 0 (motif)."
    )
    vectors: str | None = Field(None, description="fastText .bin word vectors; unset uses the embedded ones (bow).")
    goal_text: str | None = Field(
        None, description="Text to compare captions with; unset is the goal's sentence (bow)."
    )
    similarity_threshold: float = Field(
        0.9,
        ge=-1,
        le=1,
        description="Cosine similarity at or below which the reward is 0; a tenth to a third pass 0.9 (bow).",
    )
    count_scope: Literal["episodic", "lifelong"] = Field(
        "lifelong", description="episodic: 1 for every caption, times the count; lifelong: 1/sqrt(N_all) (count)."
    )
    rnd_features: int = Field(128, ge=1, description="Outputs of the target and predictor networks (rnd).")
    lr: float = Field(1e-4, gt=0, description="Adam's learning rate of the reward model.")
    batch_size: int = Field(256, ge=1, description="Labels in a gradient step of the reward model.")
    max_pairs: int = Field(100_000, ge=1, description="Newest answered pairs that are trained on (ranking).")
    steps_per_label_batch: int = Field(
        32, ge=1, description="Gradient steps for each arriving batch of up to 100 labels."
    )
    warmup_labels: int = Field(
        25_000, ge=0, description="Labels after which it is one gradient step for each policy update instead."
    )
    held_out_fraction: float = Field(0.1, ge=0, lt=1, description="Share of labels kept for measuring accuracy.")
    publish_interval_s: float = Field(2.0, ge=0, description="Least seconds between two published snapshots.")

    @field_validator("path", "vectors")
    @classmethod
    def _paths(cls, value: str | None) -> str | None:
        return None if value is None else _absolute(value)

    @model_validator(mode="after")
    def _count_is_left(self) -> RewardSection:
        if self.type == "count" and self.count_scope == "episodic" and not self.episodic_count:
            raise ValueError(
                "reward.count_scope=episodic is nothing but the episodic count; set reward.episodic_count=true"
            )
        return self


class AnnotationSection(Section):
    """What is asked about the captions."""

    goal: str = Field("score", description="Goal by which captions are judged: of the prompt, goals.yaml or goal_file.")
    goal_file: str | None = Field(None, description="YAML with goals of your own: sentence and examples of each.")
    prompt: str = Field(
        "auto", description="Prompt name, or the path of a prompt YAML; auto: rank_v1 for ranking, else label_v2."
    )
    split_sentences: bool = Field(
        True, description="Judge sentence by sentence; a caption is helpful if one of its sentences is."
    )
    both_orders: bool = Field(
        True,
        description="Ask each pair in both orders; an answer that depends on the order is neither (ranking, by prompts "
        "that show both captions).",
    )
    pool: int = Field(10_000, ge=2, description="Most distinct captions kept to draw pairs from (ranking).")
    choose: Literal["newest", "frequent", "uncertain"] = Field(
        "newest",
        description="What is asked first: last met, met most often, or least certain under the reward model.",
    )
    budget: int | None = Field(None, ge=0, description="Most labels asked for in all, over every resume; unset: any.")
    budget_per_env_step: float | None = Field(
        None, gt=0, description="Most labels asked for an env step played so far; unset: any."
    )
    annotators: int = Field(1, ge=1, description="Annotator actors.")
    batch_size: int = Field(32, ge=1, description="Texts of one lease, asked concurrently.")
    queue_limit: int = Field(
        100_000, ge=1, description="Most texts waiting; those worth least are dropped and counted."
    )
    lease_timeout_s: float = Field(180.0, gt=0, description="Seconds after which unanswered work is queued again.")
    runner_memory: int = Field(100_000, ge=1, description="Captions a runner remembers having sent.")
    reuse: str | None = Field(
        None, description="Run folder or data set whose labels of the same question are used at once."
    )

    @field_validator("goal_file", "reuse")
    @classmethod
    def _paths(cls, value: str | None) -> str | None:
        return None if value is None else _absolute(value)

    @field_validator("prompt")
    @classmethod
    def _prompt_path(cls, value: str) -> str:
        return _absolute(value) if value.endswith((".yaml", ".yml")) else value


class LLMSection(Section):
    """Who answers."""

    backend: Literal["serve", "openai"] = Field(
        "serve", description="serve: deploy `serve_config` on this cluster; openai: any OpenAI-compatible URL."
    )
    serve_config: str = Field(
        "serve_configs/smollm2_cpu.yaml", validate_default=True, description="Serve YAML to deploy (backend serve)."
    )
    base_url: str | None = Field(None, description="For example http://127.0.0.1:8000/v1 (backend openai).")
    model: str | None = Field(None, description="Model id at that URL (backend openai).")
    api_key_env: str | None = Field(None, description="Environment variable that holds the API key (backend openai).")
    timeout_s: float = Field(60.0, gt=0, description="Seconds to wait for the answers to one lease.")

    @field_validator("serve_config")
    @classmethod
    def _path_of_a_file(cls, value: str) -> str:
        """The default names a file that a run without a language model need not have; then it stays as it is."""
        path = _absolute(value)
        return path if Path(path).is_file() else value


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
    llm: LLMSection = Field(default_factory=LLMSection)  # in the working directory of its run, not of the import
    resources: ResourcesSection = ResourcesSection()
    checkpoint: CheckpointSection = CheckpointSection()
    log: LogSection = LogSection()
    debug: DebugSection = DebugSection()

    @model_validator(mode="before")
    @classmethod
    def _choose_prompt(cls, values: Any) -> Any:
        """Replaces prompt `auto`, so that the resolved configuration names the question that is asked."""
        if not isinstance(values, dict):
            return values
        reward, annotation = values.get("reward") or {}, values.get("annotation") or {}
        if not isinstance(reward, dict) or not isinstance(annotation, dict):
            return values
        if annotation.get("prompt", "auto") != "auto":
            return values
        prompt = PAIR_PROMPT if reward.get("type") == "ranking" else CAPTION_PROMPT
        return {**values, "annotation": {**annotation, "prompt": prompt}}

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
        if self.reward.type == "motif" and not self.reward.path:
            raise ValueError("reward.type=motif needs reward.path, a folder made by `oni-ray fit-reward`")
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
