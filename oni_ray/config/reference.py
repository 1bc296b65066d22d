"""`python -m oni_ray.config.reference` prints docs/configuration.md."""

from __future__ import annotations

from typing import Any

from oni_ray.config.sections import Config


def configuration_reference() -> str:
    """The text of docs/configuration.md: a table of keys, types, defaults and meanings for each section."""
    lines = [
        "# Configuration",
        "",
        "Generated from the field descriptions in `oni_ray/config/sections.py` by `make docs`; do not edit by hand.",
        "A YAML file holds sections, the command line holds overrides: "
        "`oni-ray train experiments/quickstart.yaml algorithm.lr=3e-4`.",
    ]
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        lines += ["", f"## {name}", "", section.__doc__, "", "| key | type | default | meaning |", "|---|---|---|---|"]
        for key, info in section.model_fields.items():
            kind = info.annotation.__name__ if isinstance(info.annotation, type) else str(info.annotation)
            kind = kind.replace("typing.", "").replace("|", "\\|")
            default = "unset" if info.default is None else info.default
            lines.append(f"| `{name}.{key}` | {kind} | `{default}` | {info.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(configuration_reference(), end="")
