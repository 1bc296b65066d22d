"""What the documents name exists: configuration keys, commands with their options, files, links, classes with methods.

Only code is looked at: blocks, and what stands between backticks. Words in capitals (RUN, NAME) are placeholders.
"""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from oni_ray.cli import app
from oni_ray.config import Config, load_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted(path for path in (ROOT / "experiments").rglob("*") if path.suffix in (".sh", ".yaml"))
FOLDERS = ("oni_ray", "docs", "experiments", "serve_configs", "tests", "benchmarks")
# Files of a run folder, or of the reader.
NOT_OURS = {"config.yaml", "my_goals.yaml", "mine/label.yaml", "labels/corrections.jsonl"}
RLLIB = {"EnvRunnerStateServer"}

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
KEY = re.compile(rf"(?<![\w./$-])({'|'.join(Config.model_fields)})\.([a-z_]+)(?![\w(]|\.[a-z])")
COMMAND = re.compile(r"\boni-ray ([a-z][a-z-]*)([^\n;|]*)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")
FILE = re.compile(
    rf"(?<![\w./$*}}:-])((?:\w[\w.-]*/)*\w[\w.-]*\.(?:py|yaml|sh|md|jsonl)\b|(?:{'|'.join(FOLDERS)})/(?:[\w-]+/)*)"
)
MEMBER = re.compile(r"^([A-Z]\w*[a-z]\w*)(?:\.(\w+))?$")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
FILE_ENDS = {"json", "yaml", "py", "md", "csv", "png", "sh", "log", "pt"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def snippets(page: Path) -> tuple[str, ...]:
    """Each piece of code on a page, on one line where a backslash or a pair of backticks holds it together."""
    text = page.read_text("utf-8")
    if page.suffix != ".md":
        return tuple(re.sub(r"\s*\\\n[#\s]*", " ", text).splitlines())
    blocks = [body for language, body in BLOCK.findall(text) if language != "python"]
    prose = BLOCK.sub("", text)
    indented = re.findall(r"^ {4}(\S.*)$", prose, re.MULTILINE)
    lines = [line for block in blocks for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines()]
    return (*lines, *indented, *(" ".join(code.split()) for code in INLINE.findall(prose)))


@cache
def commands() -> dict[str, Any]:
    """The program's commands by name."""
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


@cache
def options(command: str) -> frozenset[str]:
    names = {name for option in commands()[command].params for name in (*option.opts, *option.secondary_opts)}
    return frozenset(names | {"--help", "--version"})


@cache
def source() -> frozenset[str]:
    """Every word of the package's code."""
    return frozenset(
        word for path in (ROOT / "oni_ray").rglob("*.py") for word in re.findall(r"\w+", path.read_text("utf-8"))
    )


@cache
def files_by_name() -> frozenset[str]:
    return frozenset(path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*"))


def is_there(file: str) -> bool:
    known = "/" not in file and file in files_by_name()
    return known or any((folder / file).exists() for folder in (ROOT, ROOT / "oni_ray", ROOT / "docs"))


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=name_of)
def test_every_configuration_key_exists(page: Path) -> None:
    found = {match.groups() for code in snippets(page) for match in KEY.finditer(code)}
    fields = {name: field.annotation for name, field in Config.model_fields.items()}
    unknown = {
        f"{section}.{key}"
        for section, key in found
        if key not in FILE_ENDS and key not in fields[section].model_fields  # type: ignore[union-attr]
    }
    assert not unknown


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=name_of)
def test_every_command_and_option_exists(page: Path) -> None:
    for code in snippets(page):
        for command, rest in COMMAND.findall(code):
            assert command in commands(), code
            unknown = set(OPTION.findall(rest.partition(" #")[0])) - options(command)
            assert not unknown, code
        if code.startswith("--"):  # named without its command
            assert any(set(OPTION.findall(code)) <= options(command) for command in commands()), code


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=name_of)
def test_every_training_command_is_a_valid_configuration(page: Path) -> None:
    for code in snippets(page):
        for command, rest in COMMAND.findall(code):
            if command != "train" or "$" in rest:
                continue
            words = [word for word in shlex.split(rest, comments=True) if not word.startswith("--") and word != "..."]
            changes = [word for word in words if "=" in word and not word.endswith("=")]
            file = next((word for word in words if word.endswith(".yaml") and "=" not in word), None)
            if file is None or not any(letter.isupper() for letter in file):
                load_config(ROOT / file if file else None, changes)


def anchors(page: Path) -> set[str]:
    """What a link to a heading of the page ends in."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text("utf-8")):
        if "://" not in target:
            there = page.parent / target if target else page
            assert there.exists(), target
            assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_example_names_what_there_is(page: Path) -> None:
    for language, body in BLOCK.findall(page.read_text("utf-8")):
        if language != "python":
            continue
        for statement in ast.walk(ast.parse(body)):
            if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("oni_ray"):
                module = ROOT / f"{str(statement.module).replace('.', '/')}.py"
                assert {alias.name for alias in statement.names} <= set(re.findall(r"\w+", module.read_text("utf-8")))


@pytest.mark.parametrize("page", [*PAGES, *SCRIPTS], ids=name_of)
def test_every_file_exists(page: Path) -> None:
    named = {match for code in snippets(page) for match in FILE.findall(code)}
    placeholders = {file for file in named if any(part.isupper() for part in re.split(r"\W", file))}
    assert not {file for file in named - NOT_OURS - placeholders if not is_there(file)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_class_and_method_exists(page: Path) -> None:
    found = [match.groups() for code in snippets(page) if (match := MEMBER.match(code.removesuffix("()")))]
    classes = [(name, member) for name, member in found if member or re.search(r"[a-z][A-Z]", name)]
    unknown = {word for names in classes for word in names if word and word not in source() | RLLIB}
    assert not unknown


def test_the_readme_lists_every_document() -> None:
    links = {target for target, _ in LINK.findall((ROOT / "README.md").read_text("utf-8"))}
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= links
