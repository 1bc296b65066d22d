"""Every shipped Serve config parses against Serve's and Ray LLM's schemas, and the mistakes people make are named."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from oni_ray.errors import UserError
from oni_ray.serving.app import build_app, deployment_name, parse_args
from oni_ray.serving.deploy import load_serve_config

FOLDER = Path(__file__).parent.parent / "serve_configs"
SHIPPED = sorted(FOLDER.glob("*.yaml"))


def args_of(path: Path) -> dict:
    return yaml.safe_load(path.read_text())["applications"][0]["args"]


def test_configs_are_shipped():
    assert {path.name for path in SHIPPED} >= {"smollm2_cpu.yaml", "llama31_8b_gpu.yaml"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_config_fits_both_schemas(path):
    config = load_serve_config(path)
    assert config.host == "127.0.0.1"
    assert config.base_url == f"http://127.0.0.1:{config.port}/v1"
    (llm_config,) = parse_args(args_of(path)).llm_configs
    assert llm_config.model_id == config.model_id
    assert config.deployment == deployment_name(llm_config.model_id)
    llm_config.get_engine_config()  # refuses an engine argument that vLLM does not have
    assert llm_config.server_cls.__name__ == "LabelServer"
    assert llm_config.engine_kwargs["max_logprobs"] >= 20


def test_the_cpu_config_asks_for_one_cpu_and_no_gpu():
    (llm_config,) = parse_args(args_of(FOLDER / "smollm2_cpu.yaml")).llm_configs
    assert llm_config.get_engine_config().placement_bundles == [{"CPU": 1}]
    assert llm_config.deployment_config["ray_actor_options"]["num_cpus"] == 0


def test_the_gpu_config_asks_for_one_gpu_and_holds_no_token():
    path = FOLDER / "llama31_8b_gpu.yaml"
    (llm_config,) = parse_args(args_of(path)).llm_configs
    bundles = llm_config.get_engine_config().placement_bundles
    assert [bundle["GPU"] for bundle in bundles] == [1]
    assert llm_config.model_loading_config.model_source == "meta-llama/Llama-3.1-8B-Instruct"
    assert "hf_" not in path.read_text()
    assert "HF_TOKEN" not in yaml.safe_dump(yaml.safe_load(path.read_text()))


def test_an_engine_argument_that_vllm_lacks_is_refused():
    args = args_of(FOLDER / "llama31_8b_gpu.yaml")
    args["llm_configs"][0]["engine_kwargs"]["max_model_length"] = 1
    with pytest.raises(ValueError, match="max_model_length"):
        parse_args(args).llm_configs[0].get_engine_config()


def test_a_prepared_source_is_resolved_and_only_then_skips_the_download():
    prepared, hub = args_of(FOLDER / "smollm2_cpu.yaml"), args_of(FOLDER / "llama31_8b_gpu.yaml")
    asked = []

    def resolve(source: str) -> str:
        asked.append(source)
        return "/a/folder"

    (local,) = parse_args(prepared, resolve).llm_configs
    (remote,) = parse_args(hub, resolve).llm_configs
    assert asked == ["prepared:smollm2-135m-instruct"]
    assert local.model_loading_config.model_source == "/a/folder"
    assert local.callback_config.callback_class.endswith("LocalModelCallback")
    assert remote.callback_config != local.callback_config
    assert prepared == args_of(FOLDER / "smollm2_cpu.yaml")  # the caller's arguments are left alone


def test_a_prepared_model_without_a_recipe_is_named():
    args = args_of(FOLDER / "smollm2_cpu.yaml")
    args["llm_configs"][0]["model_loading_config"]["model_source"] = "prepared:gpt-9"
    with pytest.raises(UserError, match=r"gpt-9.*smollm2-135m-instruct"):
        build_app(args)


def test_a_server_class_of_ones_own_is_kept():
    args = args_of(FOLDER / "smollm2_cpu.yaml")
    args["llm_configs"][0]["server_cls"] = "ray.serve.llm:LLMServer"
    assert parse_args(args).llm_configs[0].server_cls.__name__ == "LLMServer"


def test_deployment_names_hold_no_slash_and_no_dot():
    assert deployment_name("meta-llama/Llama-3.1-8B") == "LabelServer:meta-llama--Llama-3_1-8B"


def test_another_port_changes_the_file_content_and_the_url_together():
    config = load_serve_config(FOLDER / "smollm2_cpu.yaml").with_port(8123)
    assert config.schema["http_options"] == {"host": "127.0.0.1", "port": 8123}
    assert config.base_url == "http://127.0.0.1:8123/v1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("applications:", "aplications:"), "list 'applications'"),
        (("http_options:", "http_option:"), "http_option.*http_options"),
        (("  port: 8000", "  prot: 8000"), "prot.*'port'"),
        (("  port: 8000", "  port: many"), "port"),
        (("route_prefix: /", "route_prefx: /"), "route_prefx.*route_prefix"),
        (("import_path: oni_ray.serving.app:build_app", "import_path: nothing"), "import_path"),
        (("model_id: smollm2-135m-instruct", "model: x"), "model_id"),
        (("http_options:", "http_options: ["), "not valid YAML"),
    ],
)
def test_mistakes_in_a_file_are_named(tmp_path, change, message):
    text = (FOLDER / "smollm2_cpu.yaml").read_text()
    assert change[0] in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(UserError, match=message):
        load_serve_config(path)


@pytest.mark.parametrize("text", ["", "3", "applications: []", "applications: [x]", "applications: {}"])
def test_files_that_are_something_else_are_refused(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"mine\.yaml"):
        load_serve_config(path)


def test_a_missing_file_is_named_with_its_nearest_sibling():
    with pytest.raises(UserError, match=r"smolm2_cpu\.yaml.*'smollm2_cpu\.yaml'"):
        load_serve_config(FOLDER / "smolm2_cpu.yaml")
