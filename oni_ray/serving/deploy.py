"""Deploys a file of serve_configs/ on the Ray cluster of the caller, and follows it until the language model answers.

`deploy` does what `serve deploy` does and returns at once, so that training never waits for a model to load; whoever
needs to know asks `status` or `wait_until_ready`. It refuses to touch a cluster that serves other applications, because
Serve takes a new config as the whole truth and would remove them.
"""

from __future__ import annotations

import difflib
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oni_ray.errors import UserError
from oni_ray.serving.app import deployment_name

READY = "RUNNING"
FAILED = "DEPLOY_FAILED"
NOT_DEPLOYED = "NOT_DEPLOYED"


@dataclass(frozen=True)
class ServeConfig:
    """A checked file of serve_configs/ with the names a client needs. `schema` is the whole file as Serve takes it."""

    path: Path
    schema: dict[str, Any]
    app: str
    deployment: str
    model_id: str
    host: str
    port: int

    def __post_init__(self) -> None:
        if not self.app or not self.model_id:
            raise ValueError("a serve config needs an application name and a model id")

    @property
    def base_url(self) -> str:
        """Where the OpenAI-compatible endpoint is, as seen from the machine that serves it."""
        prefix = self.schema["applications"][0].get("route_prefix") or "/"
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{host}:{self.port}{prefix.rstrip('/')}/v1"

    @property
    def llm_configs(self) -> list[dict[str, Any]]:
        """The settings of the models that the application serves, as they stand in the file."""
        return list(self.schema["applications"][0]["args"]["llm_configs"])

    def with_port(self, port: int) -> ServeConfig:
        """The same config on another HTTP port, for a second cluster on one machine."""
        http_options = {**self.schema.get("http_options", {}), "port": port}
        return replace(self, schema={**self.schema, "http_options": http_options}, port=port)


@dataclass(frozen=True)
class AppStatus:
    """State of a Serve application: Serve's own word for it (DEPLOYING, RUNNING, ...) or NOT_DEPLOYED, and why."""

    app: str
    state: str
    message: str = ""

    @property
    def ready(self) -> bool:
        return self.state == READY


def load_serve_config(path: Path) -> ServeConfig:
    """Read and check a Serve config with one application and one model. Raises `UserError` with the nearest valid name.

    The model's own settings (`llm_configs`) are checked when the application is built: their schema imports vLLM.
    """
    import yaml
    from pydantic import ValidationError
    from ray.serve.schema import HTTPOptionsSchema, ServeApplicationSchema, ServeDeploySchema

    path = Path(path).absolute()
    if not path.is_file():
        raise UserError(f"There is no Serve config {path}.{_nearest(path.name, _siblings(path))}")
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not isinstance(content.get("applications"), list):
        raise UserError(f"{path} must be a mapping with a list 'applications'; see serve_configs/smollm2_cpu.yaml.")

    # Serve itself ignores keys that it does not know, so that a typing error would silently do nothing.
    _refuse_unknown(path, content, ServeDeploySchema.model_fields, "")
    _refuse_unknown(path, content.get("http_options") or {}, HTTPOptionsSchema.model_fields, "http_options.")
    for application in content["applications"]:
        _refuse_unknown(path, application, ServeApplicationSchema.model_fields, "applications.")
    try:
        parsed = ServeDeploySchema.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {where}: {first['msg']} (got {first['input']!r}).") from error
    if len(content["applications"]) != 1:
        raise UserError(f"{path} has {len(content['applications'])} applications and exactly one is needed.")
    http = parsed.http_options
    application = parsed.applications[0]
    model_id = _model_id(path, application.args)
    return ServeConfig(path, content, application.name, deployment_name(model_id), model_id, http.host, http.port)


def deploy(config_path: Path, http_port: int | None = None) -> ServeConfig:
    """Hand the config to Serve on the cluster that the caller is connected to, without waiting for the model.

    `http_port` replaces the file's port. Starts Serve itself if it is not running, which takes a few seconds. Raises
    `UserError` for a bad file, or for a cluster that serves other applications.
    """
    from ray import serve
    from ray.serve.schema import ServeDeploySchema

    config = load_serve_config(config_path)
    if http_port is not None:
        config = config.with_port(http_port)
    others = sorted(set(_applications()) - {config.app})
    if others:
        raise UserError(
            f"This cluster already serves {', '.join(others)}, and deploying {config.path.name} would remove it; "
            "use another cluster, or delete it first with `serve shutdown`."
        )
    schema = ServeDeploySchema.model_validate(config.schema)
    http_options = schema.http_options.model_dump(include={"host", "port", "request_timeout_s"})
    serve.start(proxy_location=schema.proxy_location, http_options=http_options)
    _client().deploy_apps(schema, _blocking=False)
    return config


def free_port(host: str = "127.0.0.1", wanted: int = 0) -> int:
    """`wanted` if nothing listens there, else a port that the system chooses.

    For those who ask the model by handle: nobody needs the HTTP endpoint then, and the config's port may be that of
    another cluster on this machine.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError:
            probe.bind((host, 0))
        return int(probe.getsockname()[1])


def status(app: str) -> AppStatus:
    """The application's state now; NOT_DEPLOYED if Serve or the application is not there. Never raises for those."""
    details = _applications().get(app)
    if details is None:
        return AppStatus(app, NOT_DEPLOYED)
    messages = [details.message, *(d.message for d in details.deployments.values() if d.status.value != "HEALTHY")]
    return AppStatus(app, details.status.value, "\n".join(message for message in messages if message))


def wait_until_ready(app: str, timeout_s: float, progress: Callable[[str], None] = print) -> None:
    """Block until the application's replicas answer. Raises `UserError` if its deployment fails or takes too long.

    `progress` gets a line when the state changes and every 15 s.
    """
    started = time.monotonic()
    said_at, said = -15.0, ""
    while True:
        current, waited_s = status(app), time.monotonic() - started
        if current.ready:
            progress(f"{app} is ready after {waited_s:.0f} s")
            return
        if current.state == FAILED:
            raise UserError(f"The language model could not be deployed: {_last_line(current.message)}")
        if waited_s > timeout_s:
            raise UserError(
                f"The language model {app!r} is {current.state} after {waited_s:.0f} s: {_last_line(current.message)}. "
                "Look into Ray's logs (session_latest/logs/serve), or give it more time."
            )
        if current.state != said or waited_s - said_at >= 15:
            progress(f"{app}: {current.state.lower()} for {waited_s:.0f} s")
            said_at, said = waited_s, current.state
        time.sleep(0.5)


def serve_forever(config_path: Path, progress: Callable[[str], None] = print, ready_timeout_s: float = 1800.0) -> None:
    """`oni-ray serve CONFIG`: deploy on $RAY_ADDRESS or a new local Ray, say when it answers, stay until Ctrl-C.

    On the way out it takes down only what it started: its application, Serve, or the whole local Ray.
    """
    load_serve_config(config_path)  # a bad file is refused before anything starts
    started_ray = _join_or_start_ray(progress)
    import ray

    found_serve = bool(_client_or_none())
    config: ServeConfig | None = None
    try:
        config = deploy(config_path)
        progress(f"deploying {config.model_id}; Ctrl-C stops it")
        wait_until_ready(config.app, ready_timeout_s, progress)
        for line in _greeting(config):
            progress(line)
        _watch(config.app, progress)
    except KeyboardInterrupt:
        progress("stopping")
    finally:
        _take_down(config, found_serve)
        if started_ray:
            ray.shutdown()


def _watch(app: str, progress: Callable[[str], None]) -> None:
    last = READY
    while True:
        time.sleep(2)
        current = status(app)
        if current.state != last:
            progress(f"{app}: {current.state.lower()} {_last_line(current.message)}".rstrip())
            last = current.state


def _greeting(config: ServeConfig) -> list[str]:
    body = f'{{"model": "{config.model_id}", "prompt": "You kill the", "max_tokens": 8}}'
    return [
        f"{config.model_id} answers on {config.base_url}",
        "try:",
        f"  curl {config.base_url}/completions -H 'Content-Type: application/json' -d '{body}'",
    ]


def _join_or_start_ray(progress: Callable[[str], None]) -> bool:
    """Connect to the cluster that $RAY_ADDRESS names, else start one of our own; True if one was started.

    A cluster that merely runs on this machine may be somebody else's job, so it is never searched for (`auto`).
    """
    import ray

    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
        progress("started Ray on this machine; set RAY_ADDRESS to use a running cluster")
        return True
    try:
        ray.init(address=address, log_to_driver=False)
    except ConnectionError as error:
        raise UserError(f"No Ray cluster answers at RAY_ADDRESS={address}; start it, or unset the variable.") from error
    progress(f"joined the Ray cluster {address}")
    return False


def _take_down(config: ServeConfig | None, found_serve: bool) -> None:
    from ray import serve

    if not found_serve:
        serve.shutdown()
    elif config is not None:
        serve.delete(config.app)


def _client_or_none() -> Any:
    from ray.serve.exceptions import RayServeException

    try:
        return _client()
    except RayServeException:
        return None


def _client() -> Any:
    from ray.serve.context import _get_global_client

    return _get_global_client()


def _applications() -> dict[str, Any]:
    """Serve's applications by name; empty if Serve is not running here, so that asking never starts it."""
    from ray import serve

    return dict(serve.status().applications) if _client_or_none() is not None else {}


def _model_id(path: Path, args: dict[str, Any]) -> str:
    try:
        (llm_config,) = args["llm_configs"]
        return str(llm_config["model_loading_config"]["model_id"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: args.llm_configs must list exactly one model with model_loading_config.model_id; "
            "see serve_configs/smollm2_cpu.yaml."
        ) from error


def _refuse_unknown(path: Path, mapping: Any, known: Iterable[str], where: str) -> None:
    if not isinstance(mapping, dict):
        raise UserError(f"{path}: {where.rstrip('.')} must be a mapping, not {mapping!r}.")
    names = list(known)
    for key in mapping:
        if key not in names:
            raise UserError(f"{path}: unknown key {where}{key}.{_nearest(str(key), names)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def _siblings(path: Path) -> list[str]:
    return [sibling.name for sibling in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []


def _last_line(message: str) -> str:
    lines = [line for line in message.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
