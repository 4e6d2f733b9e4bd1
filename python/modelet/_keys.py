"""The keys of an experiment (docs/experiment.md) as Python values, and as the text that programs read."""
import json
import os
from collections.abc import Mapping
from typing import Any


def flat(keys: Mapping[str, Any] | None) -> dict[str, Any]:
    """{"train": {"epochs": 2}} and {"train.epochs": 2} both become {"train.epochs": 2}."""
    result: dict[str, Any] = {}
    for name, value in (keys or {}).items():
        if isinstance(value, dict):
            result.update({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            result[name] = value
    return result


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(element) for element in value) + "]"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (bool, str)):  # TOML writes these as JSON does, without surrogates and with escapes for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if hasattr(value, "item"):  # a number of numpy
        value = value.item()
    return repr(value)


def assignments(keys: Mapping[str, Any]) -> list[str]:
    """["train.epochs=2"]"""
    return [f"{name}={_text(value)}" for name, value in flat(keys).items()]
