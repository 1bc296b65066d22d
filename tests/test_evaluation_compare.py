"""Curves and groups of runs on figures whose answers are computed by hand, and the command on a small set of runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from oni_ray.cli import app
from oni_ray.config import dump_config, load_config
from oni_ray.errors import UserError
from oni_ray.evaluation.compare import compare_runs, final_text
from oni_ray.evaluation.curves import figure_values, interpolate, read_progress, success_rate
from oni_ray.evaluation.grouping import distinct_labels, group_runs
from oni_ray.telemetry.metrics import METRICS


def make_run(folder: Path, rows: list[dict], *overrides: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(load_config(None, [f"run.name={folder.name}", *overrides])))
    with (folder / "progress.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(METRICS), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return folder


def rows(*triples: tuple[float, float, float]) -> list[dict]:
    """Rows at 10 s and 100 env steps distance: episodes, successes, return_mean."""
    return [
        {"seconds": 10 * i, "env_steps": 100 * i, "episodes": e, "successes": s, "return_mean": r}
        for i, (e, s, r) in enumerate(triples, 1)
    ]


def test_success_rate_is_taken_over_at_least_the_window() -> None:
    progress = {
        "episodes": np.array([0.0, 4.0, 10.0, 12.0, 30.0, 30.0]),
        "successes": np.array([0.0, 1.0, 1.0, 3.0, 12.0, 12.0]),
    }
    # Window 5: nothing yet; 4 episodes since the start; 10 to 4; 12 to 4; 30 to 12; the same again.
    expected = [np.nan, 1 / 4, 0 / 6, 2 / 8, 9 / 18, 9 / 18]
    np.testing.assert_allclose(success_rate(progress, window=5), expected)


def test_success_rate_of_a_file_that_left_out_continual_tasks_is_its_column() -> None:
    progress = {
        "episodes": np.array([0.0, 10.0, 20.0]),
        "successes": np.zeros(3),
        "success_rate": np.array([np.nan, 0.5, 0.25]),
    }
    np.testing.assert_allclose(success_rate(progress, window=5), [np.nan, 0.5, 0.25])
    never = {**progress, "success_rate": np.array([np.nan, 0.0, 0.0])}
    without = {name: values for name, values in progress.items() if name != "success_rate"}
    for other in (never, without):
        np.testing.assert_allclose(success_rate(other, window=5), [np.nan, 0.0, 0.0])


def test_rows_that_a_resume_from_a_checkpoint_plays_again_are_left_out(tmp_path: Path) -> None:
    steps = [100, 200, 300, 200, 400]  # the checkpoint was made at 100 or later, before 200
    run = make_run(tmp_path / "a", [{"seconds": i, "env_steps": s, "return_mean": i} for i, s in enumerate(steps)])
    progress = read_progress(run)
    assert progress["env_steps"].tolist() == [100, 200, 400]
    assert progress["return_mean"].tolist() == [0, 3, 4]


def test_interpolation_is_linear_and_unknown_outside_of_the_rows() -> None:
    progress = {"env_steps": np.array([100.0, 200.0, 300.0])}
    grid = np.array([0.0, 100.0, 125.0, 300.0, 301.0])
    values = interpolate(progress, np.array([1.0, np.nan, 5.0]), "env_steps", grid)
    np.testing.assert_allclose(values, [np.nan, 1.0, 1.5, 5.0, np.nan])
    assert np.isnan(interpolate(progress, np.full(3, np.nan), "env_steps", grid)).all()


def test_a_groups_curve_is_its_runs_mean_where_all_have_values(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", rows((1, 0, 0.0), (2, 1, 2.0), (3, 2, 4.0)), "run.seed=1")
    b = make_run(tmp_path / "b", rows((1, 0, 2.0), (2, 1, 4.0)), "run.seed=2")
    comparison = compare_runs([a, b], ["env_steps", "minutes"], ["return_mean"], window=1)
    assert [group.runs for group in comparison.groups] == [(a, b)]
    curve = comparison.curves["return_mean", "env_steps"][0]
    known = np.isfinite(curve.mean)
    assert curve.x[known].min() >= 100 and curve.x[known].max() <= 200 < curve.x.max() == 300
    np.testing.assert_allclose(curve.mean[known], curve.x[known] / 50 - 1)  # between x/50 - 2 and x/50
    np.testing.assert_allclose(curve.high[known] - curve.low[known], 2.0)
    assert comparison.final["return_mean"] == [[4.0, 4.0]]
    assert comparison.extent["minutes"] == [[0.5, pytest.approx(1 / 3)]]


def test_runs_are_grouped_up_to_their_seed_and_named_by_what_differs(tmp_path: Path) -> None:
    def run(name: str, *overrides: str) -> Path:
        return make_run(tmp_path / name, rows((1, 1, 1)), *overrides)

    runs = [
        run("a1", "reward.type=none", "run.seed=1"),
        run("a2", "reward.type=none", "run.seed=2", "stop.seconds=5", "resources.num_cpus=3", "log.interval_s=1"),
        run("b1", "reward.type=ranking"),
        run("c1", "reward.type=classification"),
        run("c2", "reward.type=classification", "annotation.budget=10"),
    ]
    assert [(g.label, len(g.runs)) for g in group_runs([*runs, runs[0]])] == [
        ("none", 2),
        ("ranking", 1),
        ("classification budget=None", 1),
        ("classification budget=10", 1),
    ]
    tasks = [{"reward.type": "bow", "env.task": task} for task in ("score", "oracle")]
    assert distinct_labels(tasks) == ["bow score", "bow oracle"]
    assert distinct_labels(tasks[:1]) == ["bow"]


def test_files_are_grouped_by_what_they_say_and_named_by_their_last_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, place: str, goals: str, text: str, *overrides: str) -> Path:
        (tmp_path / place).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / place)
        Path(goals).write_text(text)
        return make_run(tmp_path / "runs" / name, rows((1, 1, 1)), f"annotation.goal_file={goals}", *overrides)

    same = [run("a1", "here", "goals.yaml", "a: {}"), run("a2", "there", "goals.yaml", "a: {}", "run.seed=2")]
    other = run("b", "there", "others.yaml", "a: {}")
    assert [(g.label, g.runs) for g in group_runs([*same, other])] == [
        ("classification goal_file=goals.yaml", tuple(same)),
        ("classification goal_file=others.yaml", (other,)),
    ]
    changed = run("c", "elsewhere", "goals.yaml", "b: {}")
    reused = run("d", "here", "goals.yaml", "a: {}", "annotation.reuse=runs/old")
    assert [len(group.runs) for group in group_runs([*same, changed])] == [2, 1]
    labels = [group.label for group in group_runs([*same, reused])]
    assert labels == ["classification reuse=None", "classification reuse=old"]


def test_the_command_writes_table_json_and_a_plot_of_two_panels(tmp_path: Path) -> None:
    for reward in ("none", "count"):
        for seed in (1, 2, 3):
            figures = rows(*((50 * i, 10 * i * seed if reward == "count" else 0, 0) for i in (1, 2, 3)))
            make_run(tmp_path / "runs" / f"{reward}-{seed}", figures, f"reward.type={reward}", f"run.seed={seed}")
    plot, found = tmp_path / "plots" / "m.png", tmp_path / "m.json"
    runs = [str(run) for run in sorted((tmp_path / "runs").iterdir())]
    options = ["--figure", "success_rate", "--window", "50", "--by", "env_steps,minutes"]
    arguments = ["compare", *runs, *options, "--plot", str(plot), "--json", str(found)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "count" in result.output and "0.40 [0.20, 0.60]" in result.output  # the seeds' rates are 0.2, 0.4 and 0.6
    groups = {group["label"]: group for group in json.loads(found.read_text())["groups"]}
    assert groups["none"]["final"]["success_rate"]["by_run"] == [0.0, 0.0, 0.0]
    assert groups["count"]["final"]["success_rate"]["mean"] == pytest.approx({"value": 0.4, "low": 0.2, "high": 0.6})
    assert set(groups["count"]["curves"]) == {"success_rate by env_steps", "success_rate by minutes"}
    import matplotlib.image

    height, width = matplotlib.image.imread(plot).shape[:2]
    assert width > 2 * height  # two panels side by side


def test_a_single_run_is_shown_without_an_interval() -> None:
    assert final_text([0.25, float("nan")]) == "0.25"
    assert final_text([float("nan")]) == "-"
    assert final_text([0.0, 1.0]) == "0.5 [0.0, 1.0]"


def test_wrong_folders_axes_and_figures_are_one_sentence(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", rows((1, 1, 1)))
    empty = make_run(tmp_path / "b", [])
    with pytest.raises(UserError, match="not a run folder"):
        compare_runs([tmp_path], ["env_steps"], ["return_mean"], 1)
    with pytest.raises(UserError, match="no rows yet"):
        compare_runs([run, empty], ["env_steps"], ["return_mean"], 1)
    (empty / "progress.csv").unlink()
    with pytest.raises(UserError, match=r"has no progress\.csv"):
        compare_runs([empty], ["env_steps"], ["return_mean"], 1)
    with pytest.raises(UserError, match="the axes are env_steps, seconds, minutes"):
        compare_runs([run], ["hours"], ["return_mean"], 1)
    with pytest.raises(UserError, match="There is no figure 'returns'"):
        figure_values(read_progress(run), "returns", 1)
