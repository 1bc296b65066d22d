"""`oni-ray profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def profile(
    config: Annotated[
        Path | None,
        typer.Argument(help="Experiment YAML, for example experiments/quickstart.yaml.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value, for example rollout.runners=4.", show_default=False)
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Seconds to measure.")] = 60.0,
    warm_up: Annotated[
        float, typer.Option(min=0.0, help="Seconds between the first update (and label, if asked for) and that.")
    ] = 10.0,
    out: Annotated[
        Path | None, typer.Option(help="Keep the run in this folder; else it is removed.", show_default=False)
    ] = None,
    json: Annotated[Path | None, typer.Option(help="JSON file for all figures.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Picture of the shares.", show_default=False)] = None,
) -> None:
    """Train for a minute and show where the time goes: by process and phase, and what the bottleneck is.

    Ctrl-C shows what was measured so far.
    """
    from rich.console import Console

    from oni_ray.profile_run import ProfileRequest
    from oni_ray.profile_run import profile as run

    changes = list(overrides or [])
    if config is not None and "=" in str(config) and not config.exists():  # overrides only
        changes, config = [str(config), *changes], None
    run(ProfileRequest(config, tuple(changes), seconds, warm_up, out, json, plot), Console())
