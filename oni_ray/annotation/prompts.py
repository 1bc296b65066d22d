"""Reads prompt files (YAML, in `prompts/` or anywhere on disk) and renders the question about a caption.

Two modes: `label` renders one string whose next token is the answer, `reasoned` renders chat messages that end in a
tag. Everything fixed comes before the caption, byte for byte the same for all captions, so that the server's prefix
cache pays; and a caption is untrusted text from inside the game, so it is escaped until it can neither close its
quotes nor form a control token.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from oni_ray.annotation.messages import Outcome, PromptId
from oni_ray.errors import UserError

Chat = list[dict[str, str]]
MAX_CAPTION_LENGTH = 256
# What starts a control token in the models in use: <|im_start|>, </s>, <start_of_turn>, [INST], [/INST], [[tag]].
_CONTROL = re.compile(r"<(?=[|/A-Za-z])|\[(?=[\[/A-Z])")


@dataclass(frozen=True)
class Example:
    """A caption and the answer shown for it."""

    caption: str
    answer: str


@dataclass(frozen=True)
class Goal:
    """The instruction for one goal; `bias` maps part of a model's name to the log-odds to subtract for that model."""

    statement: str
    examples: tuple[Example, ...] = ()
    bias: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Choice:
    """A label word (mode label: how the next token starts; mode reasoned: what stands in the tag) and what it means."""

    word: str
    outcome: Outcome


@dataclass(frozen=True)
class Prompt:
    """A prompt file, read and checked. `instruction` may hold {goal}; `example` and `question` hold {caption}."""

    name: str
    version: int
    mode: Literal["label", "reasoned"]
    instruction: str
    question: str
    follow_up: str
    goals: Mapping[str, Goal]
    choices: tuple[Choice, ...]
    example: str = ""
    max_tokens: int = 1
    temperature: float = 0.0
    threshold: float = 0.5
    min_mass: float = 0.05

    @classmethod
    def load(cls, name_or_path: str) -> Prompt:
        """A shipped prompt by name, or any file by its path (ending in .yaml). Raises UserError."""
        if name_or_path.endswith((".yaml", ".yml")):
            path = Path(name_or_path)
            if not path.is_file():
                raise UserError(f"there is no prompt file {name_or_path}")
            return cls.parse(path.read_text("utf-8"), name_or_path)
        file = _shipped() / f"{name_or_path}.yaml"
        if name_or_path not in prompt_names():
            close = difflib.get_close_matches(name_or_path, prompt_names(), n=1, cutoff=0.0)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UserError(f"there is no prompt {name_or_path!r}: {hint}(shipped: {', '.join(prompt_names())})")
        return cls.parse(file.read_text("utf-8"), name_or_path)

    @classmethod
    def parse(cls, text: str, source: str) -> Prompt:
        """Reads YAML text; `source` names it in errors. Raises UserError."""
        try:
            data = yaml.safe_load(text)
            if not isinstance(data, dict):
                raise ValueError("it must be a mapping")
            keys = [field.name for field in fields(cls)]
            unknown = sorted(set(data) - set(keys))
            if unknown:
                close = difflib.get_close_matches(unknown[0], keys, n=1, cutoff=0.0)
                raise ValueError(f"unknown key {unknown[0]!r}, did you mean {close[0]!r}?")
            goals = {name: _parse_goal(value) for name, value in data.pop("goals").items()}
            choices = tuple(Choice(str(c["word"]), Outcome(c["outcome"])) for c in data.pop("choices"))
            prompt = cls(goals=goals, choices=choices, **data)
            prompt._check()
        except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"prompt {source} cannot be used: {error}") from error
        return prompt

    def _check(self) -> None:
        if self.mode not in ("label", "reasoned"):
            raise ValueError(f"mode must be 'label' or 'reasoned', got {self.mode!r}")
        if {choice.outcome for choice in self.choices} != {Outcome.HELPFUL, Outcome.NOT_HELPFUL}:
            raise ValueError("choices must give words for exactly the outcomes helpful and not_helpful")
        if not self.question.count("{caption}") == 1:
            raise ValueError("question must hold {caption} once")
        if not self.goals:
            raise ValueError("it must have at least one goal")

    def identity(self, goal: str) -> PromptId:
        """The question asked under `goal`: the prompt's name, and a SHA-256 over everything that influences an answer.

        The other goals of the file do not enter, so adding one keeps the labels of this one. Raises UserError for an
        unknown goal.
        """
        content = {key: value for key, value in vars(self).items() if key not in ("name", "goals")}
        content["goal"] = self.goal(goal)
        canonical = json.dumps(content, sort_keys=True, ensure_ascii=True, default=vars)
        return PromptId(self.name, hashlib.sha256(canonical.encode("ascii")).hexdigest())

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
        """Raises UserError with the nearest goal for an unknown name."""
        if name not in self.goals:
            close = difflib.get_close_matches(name, self.goals, n=1, cutoff=0.0)[0]
            raise UserError(f"prompt {self.name} has no goal {name!r}: did you mean {close!r}?")
        return self.goals[name]

    def bias(self, goal: str, model: str) -> float:
        """Log-odds of "helpful" to subtract for this model, fitted on labelled captions; 0 for any other."""
        return next((value for part, value in self.goal(goal).bias if part.lower() in model.lower()), 0.0)

    def render(self, caption: str, goal: str) -> str:
        """The question of a `label` prompt: the label word is the next token."""
        self._require("label")
        return self._prefix(goal) + self.question.replace("{caption}", escape_caption(caption))

    def render_follow_up(self, caption: str, goal: str) -> str:
        """The question of a `label` prompt asked once more, with the label words named just before the answer."""
        return self.render(caption, goal) + self.follow_up

    def render_chat(self, caption: str, goal: str) -> Chat:
        """The messages of a `reasoned` prompt: instruction, examples, question."""
        self._require("reasoned")
        chat = [{"role": "system", "content": self._instruction(goal)}]
        for example in self.goal(goal).examples:
            chat.append(
                {"role": "user", "content": self.question.replace("{caption}", escape_caption(example.caption))}
            )
            chat.append({"role": "assistant", "content": example.answer})
        return [*chat, {"role": "user", "content": self.question.replace("{caption}", escape_caption(caption))}]

    def render_chat_follow_up(self, caption: str, goal: str, answer: str) -> Chat:
        """As render_chat, with the unreadable answer and the short question that follows it."""
        return [
            *self.render_chat(caption, goal),
            {"role": "assistant", "content": answer or "..."},
            {"role": "user", "content": self.follow_up},
        ]

    def _instruction(self, goal: str) -> str:
        return self.instruction.replace("{goal}", self.goal(goal).statement)

    def _prefix(self, goal: str) -> str:
        shown = (
            self.example.replace("{answer}", example.answer).replace("{caption}", escape_caption(example.caption))
            for example in self.goal(goal).examples
        )
        return self._instruction(goal) + "".join(shown)

    def _require(self, mode: str) -> None:
        if self.mode != mode:
            raise ValueError(f"prompt {self.name} has mode {self.mode}, not {mode}")


def escape_caption(caption: str) -> str:
    r"""A caption as harmless text of one line of at most 256 of its characters.

    Quotes, backslashes, control characters and the starts of control tokens become escapes: `\"`, `\n`, `\x1b`, `\x3c`.
    """
    text = caption[:MAX_CAPTION_LENGTH].replace("\\", "\\\\").replace('"', '\\"')
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return "".join(_escape_character(character) for character in text)


def _escape_character(character: str) -> str:
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return character
    if character == "\n":
        return "\\n"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def prompt_names() -> list[str]:
    """The names of the shipped prompts."""
    return sorted(file.name.removesuffix(".yaml") for file in _shipped().iterdir() if file.name.endswith(".yaml"))


def _shipped() -> Any:
    return resources.files("oni_ray.annotation") / "prompts"


def _parse_goal(value: Any) -> Goal:
    unknown = sorted(set(value) - {"statement", "examples", "bias"})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in a goal: it has statement, examples and bias")
    examples = tuple(Example(str(caption), str(answer)) for caption, answer in value.get("examples") or ())
    bias = tuple((str(model), float(number)) for model, number in (value.get("bias") or {}).items())
    return Goal(str(value["statement"]), examples, bias)
