"""Reads prompt files (YAML, in `prompts/` or anywhere on disk), renders the question, and reads the answer to it.

A prompt asks about one caption or about a pair (`kind`), in one of four modes: `label` renders one string whose next
token is the answer, `reasoned` renders chat messages that end in a tag, `ensemble` averages label prompts, `scored`
compares two captions by what a caption prompt says of each. Everything fixed comes before the caption, byte for byte
the same for all captions, so that the server's prefix cache pays. docs/prompts.md describes the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from oni_ray.annotation.answers import (
    READING_VERSION,
    decide_label,
    decide_pair,
    from_log_odds,
    log_odds,
    parse_reasoned,
    preferred,
    without_bias,
    word_probability,
)
from oni_ray.annotation.goals import GoalText, load_goals, nearest
from oni_ray.annotation.messages import Outcome, Pair, PromptId, Question
from oni_ray.annotation.prompt_parts import (
    OUTCOMES,
    PLACEHOLDERS,
    AnyGoal,
    Choice,
    Goal,
    Kind,
    Mode,
    fill_question,
    generic_goal,
    parse_any_goal,
    parse_choice,
    parse_goal,
)
from oni_ray.errors import UserError

Chat = list[dict[str, str]]
Verdict = tuple[Outcome, float | None]
"""An outcome, and the probability of "helpful" (caption) or that the first is better (pair); None if there is none."""

_SAME_ANSWERS = ("name", "goals", "goal_texts", "any_goal", "parts")  # enter the identity as far as the goal uses them


@dataclass(frozen=True)
class Prompt:
    """A prompt file, read and checked.

    `instruction` may hold {goal}; `example` and `question` hold {caption}, or {first} and {second}. goals: sections of
    the file. goal_texts: what is known of any goal. parts: the prompts that an ensemble or a scored prompt asks.
    """

    name: str
    version: int
    mode: Mode
    kind: Kind = "caption"
    instruction: str = ""
    question: str = ""
    follow_up: str = ""
    choices: tuple[Choice, ...] = ()
    example: str = ""
    goals: Mapping[str, Goal] = field(default_factory=dict)
    any_goal: AnyGoal = field(default_factory=AnyGoal)
    goal_texts: Mapping[str, GoalText] = field(default_factory=dict)
    parts: tuple[Prompt, ...] = ()
    split_sentences: bool = False
    max_tokens: int = 1
    temperature: float = 0.0
    threshold: float = 0.5
    margin: float = 0.0
    min_mass: float = 0.05

    @classmethod
    def load(cls, name_or_path: str, goal_file: str | None = None) -> Prompt:
        """A shipped prompt by name, or any file by its path (ending in .yaml), with the goals of `goal_file` added.

        Raises UserError.
        """
        if name_or_path.endswith((".yaml", ".yml")):
            path = Path(name_or_path)
            if not path.is_file():
                raise UserError(f"there is no prompt file {name_or_path}")
            return cls.parse(path.read_text("utf-8"), name_or_path, goal_file)
        if name_or_path not in prompt_names():
            close = nearest(name_or_path, prompt_names())
            shipped = ", ".join(prompt_names())
            raise UserError(f"there is no prompt {name_or_path!r}: did you mean {close!r}? (shipped: {shipped})")
        return cls.parse((_shipped() / f"{name_or_path}.yaml").read_text("utf-8"), name_or_path, goal_file)

    @classmethod
    def parse(cls, text: str, source: str, goal_file: str | None = None) -> Prompt:
        """Reads YAML text; `source` names it in errors, and members are searched beside it. Raises UserError."""
        goal_texts = load_goals(goal_file)
        try:
            data = yaml.safe_load(text)
            if not isinstance(data, dict):
                raise ValueError("it must be a mapping")
            keys = [f.name for f in fields(cls) if f.name not in ("goal_texts", "parts")] + ["members"]
            unknown = sorted(set(data) - set(keys))
            if unknown:
                raise ValueError(f"unknown key {unknown[0]!r}, did you mean {nearest(unknown[0], keys)!r}?")
            kind = data.get("kind", "caption")
            if kind not in PLACEHOLDERS:
                raise ValueError(f"kind must be 'caption' or 'pair', got {kind!r}")
            goals = {
                str(name): parse_goal(value or {}, kind) for name, value in (data.pop("goals", None) or {}).items()
            }
            choices = tuple(parse_choice(choice) for choice in data.pop("choices", ()))
            any_goal = parse_any_goal(data.pop("any_goal", {}))
            parts = tuple(cls.load(_beside(source, str(name)), goal_file) for name in data.pop("members", ()))
            prompt = cls(goals=goals, choices=choices, any_goal=any_goal, parts=parts, goal_texts=goal_texts, **data)
            prompt._check()
        except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"prompt {source} cannot be used: {error}") from error
        return prompt

    def _check(self) -> None:
        if self.mode in ("label", "reasoned"):
            self._check_question()
        elif self.mode == "ensemble":
            if not self.parts or any(part.mode != "label" or part.kind != self.kind for part in self.parts):
                raise ValueError(f"the members of an ensemble must be one or more label prompts of kind {self.kind}")
        elif self.mode == "scored":
            of_captions = [part for part in self.parts if part.mode in ("label", "ensemble") and part.kind == "caption"]
            if self.kind != "pair" or len(self.parts) != 1 or not of_captions:
                raise ValueError(
                    "a scored prompt has kind 'pair' and one member, a label or ensemble prompt of captions"
                )
        else:
            raise ValueError(f"mode must be 'label', 'reasoned', 'ensemble' or 'scored', got {self.mode!r}")
        if not 0.0 <= self.margin < 0.5:
            raise ValueError(f"margin must be at least 0 and less than 0.5, got {self.margin}")

    def _check_question(self) -> None:
        given = {choice.outcome for choice in self.choices}
        optional = {Outcome.NEITHER} if self.mode == "label" else set()
        if not OUTCOMES[self.kind] - optional <= given <= OUTCOMES[self.kind]:
            raise ValueError(f"choices must give words for the outcomes {', '.join(sorted(OUTCOMES[self.kind]))}")
        for placeholder in PLACEHOLDERS[self.kind]:
            if self.question.count(f"{{{placeholder}}}") != 1:
                raise ValueError(f"question must hold {{{placeholder}}} once")
        if self.parts:
            raise ValueError(f"a prompt of mode {self.mode!r} has no members")

    # -- what it is

    def identity(self, goal: str) -> PromptId:
        """The question asked under `goal`: the prompt's name, and a SHA-256 over everything that influences an answer.

        Other goals do not enter, so adding one keeps the labels of this one. Raises UserError for an unknown goal.
        """
        content = {key: value for key, value in vars(self).items() if key not in _SAME_ANSWERS}
        content["goal"] = self.goal(goal)
        content["parts"] = [part.identity(goal).hash for part in self.parts]
        content["reading"] = READING_VERSION
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, default=vars)
        return PromptId(self.name, hashlib.sha256(canonical.encode("ascii")).hexdigest())

    @property
    def members(self) -> tuple[Prompt, ...]:
        """The prompts of an ensemble, whose log-odds are averaged; of any other prompt, itself."""
        return self.parts if self.mode == "ensemble" else (self,)

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(choice.word for choice in self.choices)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(choice.outcome for choice in self.choices)

    @property
    def tags(self) -> dict[str, Outcome]:
        """The tags of a reasoned prompt, in lower case."""
        return {choice.word.lower(): choice.outcome for choice in self.choices}

    def goal(self, name: str) -> Goal:
        """The file's own section for a goal, else one made of its sentence and captions.

        Raises UserError with the nearest goal for an unknown name.
        """
        if name not in self.goals and name not in self.goal_texts:
            close = nearest(name, {*self.goals, *self.goal_texts})
            raise UserError(f"prompt {self.name} has no goal {name!r}: did you mean {close!r}? (annotation.goal_file)")
        for part in self.parts:
            part.goal(name)
        if name in self.goals:
            return self.goals[name]
        if self.parts:
            return Goal()
        tag = "[[{word}]]" if self.mode == "reasoned" else "{word}"
        answers = {choice.outcome: tag.replace("{word}", choice.word) for choice in self.choices}
        return generic_goal(self.goal_texts[name], self.kind, self.any_goal, answers)

    def goal_names(self) -> list[str]:
        """The goals that can be asked about."""
        return sorted({*self.goals, *self.goal_texts})

    def bias(self, goal: str, model: str) -> float:
        """Log-odds of "helpful" (or "first") to subtract for this model, fitted on labelled captions; else 0."""
        return next((value for part, value in self.goal(goal).bias if part.lower() in model.lower()), 0.0)

    # -- the question

    def render(self, question: Question, goal: str) -> str:
        """The question of a `label` prompt: the label word is the next token."""
        self._require("label")
        return self._prefix(goal) + self._ask(question)

    def render_follow_up(self, question: Question, goal: str) -> str:
        """The question of a `label` prompt asked once more, with the label words named just before the answer."""
        return self.render(question, goal) + self.follow_up

    def render_chat(self, question: Question, goal: str) -> Chat:
        """The messages of a `reasoned` prompt: instruction, examples, question."""
        self._require("reasoned")
        chat = [{"role": "system", "content": self._instruction(goal)}]
        for example in self.goal(goal).examples:
            chat.append({"role": "user", "content": fill_question(self.question, example.question)})
            chat.append({"role": "assistant", "content": example.answer})
        return [*chat, {"role": "user", "content": self._ask(question)}]

    def render_chat_follow_up(self, question: Question, goal: str, answer: str) -> Chat:
        """As render_chat, with the unreadable answer and the short question that follows it."""
        return [
            *self.render_chat(question, goal),
            {"role": "assistant", "content": answer or "..."},
            {"role": "user", "content": self.follow_up},
        ]

    def _instruction(self, goal: str) -> str:
        return self.instruction.replace("{goal}", self.goal(goal).statement)

    def _prefix(self, goal: str) -> str:
        examples = self.goal(goal).examples
        shown = (fill_question(self.example, example.question, answer=example.answer) for example in examples)
        return self._instruction(goal) + "".join(shown)

    def _ask(self, question: Question) -> str:
        if isinstance(question, Pair) != (self.kind == "pair"):
            raise ValueError(f"prompt {self.name} asks about a {self.kind}, not about {question!r}")
        return fill_question(self.question, question)

    def _require(self, mode: Mode) -> None:
        if self.mode != mode:
            raise ValueError(f"prompt {self.name} has mode {self.mode}, not {mode}")

    # -- the answer

    def read_text(self, text: str) -> Outcome:
        """The answer of a `reasoned` prompt, by the tag that ends it."""
        return parse_reasoned(text, self.tags)

    def read_label(self, logprobs: Sequence[float], goal: str, model: str) -> Verdict:
        """The answer of a `label` prompt: logprobs of its words as the next token, `model` for the bias."""
        bias = self.bias(goal, model)
        if self.kind == "pair":
            return decide_pair(logprobs, self.outcomes, bias=bias, margin=self.margin, min_mass=self.min_mass)
        return decide_label(logprobs, self.outcomes, bias=bias, threshold=self.threshold, min_mass=self.min_mass)

    def word_probability(self, logprobs: Sequence[float]) -> float | None:
        """What the words of a `label` prompt alone say, before any bias; None if that is nothing."""
        return word_probability(logprobs, self.outcomes, self.min_mass)

    def average(self, probabilities: Sequence[float | None]) -> float | None:
        """What the members of an `ensemble` say together (mean of log-odds); None if one of them says nothing."""
        known = [log_odds(probability) for probability in probabilities if probability is not None]
        return from_log_odds(sum(known) / len(known)) if len(known) == len(probabilities) else None

    def compare(self, first: float | None, second: float | None) -> float | None:
        """P(first is better) of a `scored` prompt: difference of the log-odds that each caption is helpful."""
        if first is None or second is None:
            return None
        return from_log_odds(log_odds(first) - log_odds(second))

    def decide(self, probability: float | None, goal: str, model: str) -> Verdict:
        """The outcome of an averaged or compared probability, this prompt's own bias subtracted."""
        if probability is None:
            return Outcome.INVALID, None
        probability = without_bias(probability, self.bias(goal, model))
        if self.kind == "pair":
            return preferred(probability, self.margin), probability
        return (Outcome.HELPFUL if probability >= self.threshold else Outcome.NOT_HELPFUL), probability


def prompt_names() -> list[str]:
    """The names of the shipped prompts."""
    return sorted(file.name.removesuffix(".yaml") for file in _shipped().iterdir() if file.name.endswith(".yaml"))


def _shipped() -> Any:
    return resources.files("oni_ray.annotation") / "prompts"


def _beside(source: str, member: str) -> str:
    """A member's path is relative to the file that names it; a name is that of a shipped prompt."""
    is_file = member.endswith((".yaml", ".yml"))
    return str(Path(source).parent / member) if is_file else member
