"""The command line. Heavy imports stay inside the commands, so that `--help` and a mistaken key answer at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oni_ray import __version__
from oni_ray.commands import evaluation, judging, offline, profiling
from oni_ray.errors import Interrupted, UserError
from oni_ray.outputs import disk_trouble, only_writer

if TYPE_CHECKING:
    from oni_ray.config import Config

app = typer.Typer(
    name="oni-ray",
    help="Train agents with online intrinsic rewards from a language model, as a system of Ray actors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: at 80 columns the framed one cuts option names off
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Train agents with online intrinsic rewards from a language model, as a system of Ray actors."""
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def train(
    config: Annotated[
        Path | None,
        typer.Argument(help="Experiment YAML, for example experiments/quickstart.yaml.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="section.key=value, for example algorithm.lr=3e-4.", show_default=False)
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder, from its newest checkpoint.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and exit.")] = False,
) -> None:
    """Train a policy while a language model labels the captions that it meets.

    Every key is described in docs/configuration.md. Ctrl-C saves a checkpoint, writes the report and ends.
    """
    from oni_ray.config import dump_config, load_config
    from oni_ray.run_folder import abandon_run_folder, new_run_folder, open_run_folder, prepare_run_folder

    changes = list(overrides or [])
    if config is not None and "=" in str(config) and not config.exists():  # overrides only
        changes, config = [str(config), *changes], None
    if resume is not None:
        if config is not None:
            raise UserError(
                "With --resume the configuration comes from the run folder; give only section.key=value beside it."
            )
        from oni_ray.checkpoint import MANIFEST

        if (resume / MANIFEST).is_file():
            raise UserError(f"{resume} is a checkpoint and not a run folder; give {resume.absolute().parent.parent}.")
        settings, folder = open_run_folder(str(resume), changes)
    else:
        settings = load_config(config, changes)
    check_names(settings)
    if dry_run:
        print(dump_config(settings), end="")
        return
    if resume is None:
        folder = new_run_folder(settings, config.stem if config else "run")

    from rich.console import Console

    from oni_ray.telemetry.quiet import LOG, stderr_to

    console = Console()
    console.print(f"run folder {folder}", highlight=False, markup=False, soft_wrap=True)
    with only_writer(folder):
        former = prepare_run_folder(settings, folder)
        try:
            with stderr_to(folder / LOG):
                from oni_ray.telemetry.report import print_summary
                from oni_ray.train import train as run

                summary = run(settings, folder, resume is not None, console)
        except (UserError, KeyboardInterrupt) as error:
            if isinstance(error, UserError) or former is None:
                abandon_run_folder(folder, former)
            raise
    print_summary(summary, folder, console)


@app.command()
def serve(
    config: Annotated[Path, typer.Argument(help="Serve YAML, for example serve_configs/smollm2_cpu.yaml.")],
) -> None:
    """Deploy a language model with Ray Serve and keep it up until Ctrl-C."""
    import signal

    from oni_ray.serving.deploy import serve_forever

    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell started it in the background, SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    serve_forever(config)


@app.command("prepare-model")
def prepare_model(
    name: Annotated[str, typer.Argument(help="Model to prepare.")] = "smollm2-135m-instruct",
) -> None:
    """Fetch and convert the embedded language model into the cache folder; once done, this returns at once."""
    from oni_ray.serving.model_preparation import prepare_model as prepare

    print(prepare(name))


app.command()(evaluation.evaluate)
app.command()(evaluation.compare)
app.command()(judging.judge)
app.command()(offline.collect)
app.command()(offline.annotate)
app.command()(offline.fit_reward)
app.command()(profiling.profile)


def check_names(settings: Config) -> None:
    """Refuses unknown tasks, prompts and goals, and rewards with a file missing, before training. Raises UserError."""
    from oni_ray.annotation.prompts import Prompt
    from oni_ray.envs import check_task
    from oni_ray.envs.captions import caption_function
    from oni_ray.rewards import asks, check_reward

    check_task(settings.env.task)
    caption_function(settings.env.caption, settings.env.caption_status)
    check_reward(settings)
    asked = asks(settings.reward.type)
    if asked is not None:
        prompt = Prompt.load(settings.annotation.prompt, settings.annotation.goal_file)
        prompt.goal(settings.annotation.goal)
        if f"{prompt.kind}s" != asked:
            raise UserError(
                f"reward.type={settings.reward.type} asks about {asked}, and annotation.prompt={prompt.name} about "
                f"{prompt.kind}s; leave annotation.prompt out, or choose another."
            )


@contextmanager
def plain_endings(name: str) -> Iterator[None]:
    """A `UserError`, or trouble with the disk, becomes its sentence and exit status 2, Ctrl-C status 130."""
    try:
        yield
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, Interrupted) else 2)
    except OSError as error:
        sentence = disk_trouble(error)
        if sentence is None:
            raise
        print(f"{name}: {sentence}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def run() -> None:
    """Entry point."""
    with plain_endings("oni-ray"):
        app()


if __name__ == "__main__":
    run()
