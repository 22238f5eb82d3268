# SPDX-License-Identifier: Apache-2.0
"""What docs/nvidia.md, Dockerfile and compose.yaml promise."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from specprefill.cost_model import draft_work, ideal_times
from specprefill.gpus import GPUS
from specprefill.memory_plan import GIB, ModelShape, shape_from_config
from specprefill.settings import Settings

from build_engines.plan import make_plan

ROOT = Path(__file__).parents[2]
MODELS = Path(__file__).parent / "data" / "models"

# Target, tensor parallelism, GiB of a GPU, longest prompt.
SIZINGS = (
    ("llama-3.1-8b", 1, 23.5, 16384),
    ("llama-3.1-8b", 1, 79, 65536),
    ("llama-3.1-70b", 1, 139, 32768),
    ("llama-3.1-70b", 2, 79, 32768),
    ("llama-3.1-70b", 4, 79, 32768),
    ("llama-3.1-70b", 4, 79, 65536),
    ("llama-3.1-405b", 8, 79, 32768),
    ("llama-3.1-405b", 8, 139, 65536),
)


def _shape(model: str) -> ModelShape:
    return shape_from_config(json.loads((MODELS / model / "config.json").read_text()))


def sizing_row(target: str, tp_size: int, gpu_gib: float, prompt: int) -> str:
    settings = Settings.model_validate(
        {
            "engine": "tensorrt_llm",
            "draft": {"model": str(MODELS / "llama-3.2-1b")},
            "target": {"model": str(MODELS / target)},
            "build": {
                "tp_size": tp_size,
                "gpu_memory_gib": gpu_gib,
                "max_prompt_tokens": prompt,
                "max_num_tokens": 16384,
                "max_batch_size": 16,
            },
        }
    )
    gpu = make_plan(settings, Path("/engines")).gpu
    draft = gpu.draft_weights + gpu.draft_activations + gpu.draft_kv
    draft_shape = _shape("llama-3.2-1b")
    gpu_rates = GPUS["h100"].rates
    ideal = ideal_times(
        _shape(target),
        draft_shape,
        draft_work(draft_shape, settings.draft, settings.selection.query_window, 1),
        prompt,
        round(prompt * settings.selection.keep_rate),
        gpu_rates.times(tp_size).in_fp8(),
        gpu_rates,
    ).ratio
    cells = (
        target.replace("llama-", "Llama-").replace("b", "B"),
        f"{tp_size} x {gpu_gib:g}",
        prompt,
        f"{gpu.target_weights / GIB:.1f}",
        f"{gpu.target_activations / GIB:.1f}",
        f"{draft / GIB:.1f}",
        f"{gpu.pool / GIB:.1f}",
        gpu.dense_sequences,
        gpu.pruned_sequences,
        gpu.kv_cache_free_gpu_memory_fraction,
        f"{ideal:.1f}",
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def test_the_sizing_table_is_what_the_planner_says():
    text = (ROOT / "docs" / "nvidia.md").read_text()
    rows = re.findall(r"^\| Llama-.*\|$", text, flags=re.MULTILINE)
    assert rows == [sizing_row(*sizing) for sizing in SIZINGS]


def test_the_container_is_pinned_and_not_root():
    text = (ROOT / "Dockerfile").read_text()
    images = re.findall(r"^ARG \w+_IMAGE=(\S+)", text, flags=re.MULTILINE)
    assert images
    for image in images:
        tag = image.rpartition(":")[2]
        assert re.match(r"\d+\.\d+", tag), image
    assert text.rindex("\nUSER 10001") > text.rindex("\nRUN ")
    assert "HEALTHCHECK" in text
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, flags=re.MULTILINE)
    for source in " ".join(copied).split():
        assert (ROOT / source).exists() or source == "README.md", source


def test_compose_publishes_on_loopback_only():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    server = compose["services"]["server"]
    assert server["ports"]
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    assert server["shm_size"]
    assert server["cap_drop"] == ["ALL"]
    assert all(volume.endswith(":ro") for volume in server["volumes"])
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_parts_of_compose_fit_together():
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    services, configs = compose["services"], compose["configs"]
    used = {part["source"] for service in services.values() for part in service.get("configs", ())}
    assert used == configs.keys()
    assert (ROOT / configs["dashboard"]["file"]).is_file()
    provider = yaml.safe_load(configs["dashboards"]["content"])["providers"][0]
    targets = {part["source"]: part["target"] for part in services["grafana"]["configs"]}
    assert targets["dashboard"].startswith(provider["options"]["path"] + "/")
    jobs = yaml.safe_load(configs["prometheus"]["content"])["scrape_configs"]
    scraped = {
        target for job in jobs for targets in job["static_configs"] for target in targets["targets"]
    }
    assert scraped == {"server:8002", "gateway:9000"}
    gateway = services["gateway"]
    assert gateway["user"] == services["server"]["user"] == "10001"
    assert gateway["depends_on"]["server"]["condition"] == "service_healthy"
    assert "deploy" not in gateway
    assert services["server"]["deploy"]["resources"]["reservations"]["devices"]


def test_every_deployment_file_has_a_model_test_data_can_stand_in_for():
    for name in ("8b", "70b", "405b"):
        text = (ROOT / "configs" / f"llama-3.1-{name}-fp8.yaml").read_text()
        assert "Not run on a GPU" in text
        values = yaml.safe_load(text)
        assert values["engine"] == "tensorrt_llm"
        assert Settings.model_validate(values).build.max_prompt_tokens >= 16384
