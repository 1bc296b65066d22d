"""Configuration: every shipped YAML parses, mistakes are answered with one sentence, nothing heavy is imported."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from oni_ray.config import Config, dump_config, load_config
from oni_ray.config.reference import configuration_reference
from oni_ray.errors import UserError
from oni_ray.telemetry.metrics import METRICS, metrics_reference

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_experiment_parses(path: Path) -> None:
    config = load_config(path)
    assert Config.model_validate(yaml.safe_load(dump_config(config))) == config


def test_overrides_win_and_keep_their_types() -> None:
    config = load_config(
        ROOT / "experiments" / "quickstart.yaml",
        ["algorithm.lr=3e-4", "reward.type=none", "stop.seconds=null", "debug.synchronous=true", "run.name='7'"],
    )
    assert config.algorithm.lr == 3e-4
    assert config.reward.type == "none"
    assert config.stop.seconds is None
    assert config.debug.synchronous is True
    assert config.run.name == "7"


def test_the_references_hyper_parameters_are_the_defaults() -> None:
    algorithm = Config().algorithm
    assert (algorithm.name, algorithm.lr, algorithm.gamma, algorithm.batch_size) == ("appo", 1e-4, 0.99, 1024)
    assert (algorithm.entropy_coefficient, algorithm.value_coefficient, algorithm.grad_norm) == (0.003, 0.5, 4.0)
    assert (algorithm.clip, algorithm.vtrace_rho, algorithm.vtrace_c, algorithm.adam_eps) == (0.1, 1.0, 1.0, 1e-6)
    reward = Config().reward
    assert (reward.lr, reward.batch_size, reward.steps_per_label_batch, reward.warmup_labels) == (1e-4, 256, 32, 25_000)
    assert (reward.count_exponent, reward.threshold, Config().rollout.fragment_length) == (3.0, 0.5, 32)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("algorithm.learning_rate=1", "unknown key `algorithm.learning_rate`"),
        ("algorithm.ll=1", "did you mean `algorithm.lr`?"),
        ("rewards.type=none", "did you mean `reward`?"),
        ("algorithm.fragment_lengt=3", "did you mean `rollout.fragment_length`?"),
        ("reward.type=retrival", "reward.type='retrival'"),
        ("algorithm.lr=fast", "algorithm.lr='fast'"),
        ("algorithm.lr=-1", "algorithm.lr=-1"),
        ("algorithm.batch_size=1000", "set it to 1024"),
        ("policy.crop=8", "policy.crop=8 must be odd"),
        ("llm.backend=openai", "needs llm.base_url and llm.model"),
        ("resources.learner_gpus=1", "needs resources.learner_process=true"),
        ("lr", "write section.key=value"),
        ("algorithm.lr.x=1", "algorithm.lr"),
        ("run.name={", "not valid YAML"),
    ],
)
def test_a_mistake_is_named(override: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        load_config(None, [override])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_paths_are_absolute_and_names_stay_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {
        "annotation.goal_file": "goals.yaml",
        "annotation.prompt": "mine.yml",
        "annotation.reuse": "runs/other",
        "reward.path": "rewards/score",
        "reward.vectors": "words.bin",
        "llm.serve_config": "llm.yaml",
    }
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llm.yaml").touch()

    def resolved(config: Config) -> dict[str, str]:
        values = config.model_dump()
        return {key: values[key.partition(".")[0]][key.partition(".")[2]] for key in paths}

    config = load_config(None, [f"{key}={path}" for key, path in paths.items()])
    assert resolved(config) == {key: str(tmp_path / path) for key, path in paths.items()}
    (tmp_path / "config.yaml").write_text(dump_config(config))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config(tmp_path / "config.yaml") == config
    # A file that is not there is named as it was written, and found once it is there.
    assert load_config(None, ["llm.serve_config=llm.yaml"]).llm.serve_config == "llm.yaml"
    assert load_config(None).llm.serve_config == "serve_configs/smollm2_cpu.yaml"
    (tmp_path / "elsewhere" / "serve_configs").mkdir()
    (tmp_path / "elsewhere" / "serve_configs" / "smollm2_cpu.yaml").touch()
    assert load_config(None).llm.serve_config == str(Path("serve_configs/smollm2_cpu.yaml").absolute())
    named = load_config(None, ["annotation.prompt=reasoned_v1", "annotation.goal=stairs"]).annotation
    assert (named.prompt, named.goal, named.goal_file, named.reuse) == ("reasoned_v1", "stairs", None, None)


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", "\x00"])
def test_a_bad_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"bad\.yaml"):
        load_config(path)
    with pytest.raises(UserError, match="no configuration file"):
        load_config(tmp_path / "missing.yaml")


def test_the_generated_documents_are_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration_reference()
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_reference()


def test_every_key_and_every_metric_is_documented() -> None:
    for section in Config.model_fields.values():
        assert all(field.description for field in section.annotation.model_fields.values())
    assert all(METRICS.values())


def test_help_and_a_dry_run_load_nothing_heavy() -> None:
    script = (
        "import sys\nfrom oni_ray.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'ray', 'nle', 'vllm', 'transformers', 'pyarrow'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    for arguments in (["--help"], ["train", "--help"], ["train", "experiments/quickstart.yaml", "--dry-run"]):
        done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_help_answers_within_a_second() -> None:
    """The best of five, since the machine may be busy; without heavy imports it takes about a third of that."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "oni_ray.cli", "--help"], cwd=ROOT, check=True, capture_output=True)
        best = min(best, time.perf_counter() - began)
    assert best < 1.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "experiments/none.yaml"], "no configuration file"),
        (["train", "experiments/quickstart.yaml", "env.task=scor"], "did you mean 'score'?"),
        (["train", "experiments/quickstart.yaml", "annotation.prompt=label_v9"], "label_v"),
        (["train", "experiments/quickstart.yaml", "annotation.goal=scores"], "score"),
        (["train", "--resume", "runs/never"], "is not a run folder"),
        (["train", "--resume", "runs/never", "experiments/quickstart.yaml"], "--resume"),
        (["serve", "serve_configs/smollm2_cp.yaml"], "smollm2_cpu.yaml"),
        (["train", "resources.address=127.0.0.1:9", "reward.type=none"], "No Ray cluster answers at 127.0.0.1:9"),
        (["train", "llm.backend=openai", "llm.base_url=http://127.0.0.1:9/v1", "llm.model=m"], "llm.base_url"),
    ],
)
def test_bad_input_is_one_sentence_and_a_failure(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    if arguments[0] == "train" and "--resume" not in arguments:
        arguments = [*arguments, f"run.folder={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "oni_ray.cli", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())  # no folder of a run that never began
