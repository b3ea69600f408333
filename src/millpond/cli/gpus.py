"""GPUs of this machine, as resources: found by nvidia-smi or rocm-smi, within what an outer variable allows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import click

POOL: Final = "gpus"
PATIENCE: Final = 5.0
"""Seconds that a tool has to tell of the GPUs."""


@dataclass(frozen=True)
class Gpu:
    """A GPU."""

    index: str
    uuid: str
    model: str
    memory: str
    maker: str

    @property
    def name(self) -> str:
        """What it is called in the pool."""
        return f"gpu-{self.index}"

    @property
    def labels(self) -> dict[str, str]:
        """What can be asked for."""
        found = {
            "index": self.index,
            "uuid": self.uuid,
            "model": self.model,
            "memory": self.memory,
            "maker": self.maker,
        }
        return {key: value for key, value in found.items() if value}


def discover() -> list[Gpu]:
    """Return the GPUs of this machine."""
    return _nvidia() or _amd()


def limit() -> tuple[str, str] | None:
    """Return the outer variable that says which GPUs may be used here, and what it says."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        listed = os.environ.get(variable)
        if listed is not None:
            return variable, listed
    return None


def allowed(labels: Sequence[tuple[str, str]]) -> dict[str, str] | list[dict[str, str]] | None:
    """Return what to ask for: these labels, within the GPUs that an outer variable allows."""
    wanted, outer = dict(labels), limit()
    if outer is None:
        return wanted or None
    names = [one.strip() for one in outer[1].split(",") if one.strip()]
    if not names:
        raise click.ClickException(f"{outer[0]} is empty: no GPU may be used here")
    return [{**wanted, ("index" if one.isdigit() else "uuid"): one} for one in names]


def _nvidia() -> list[Gpu]:
    answer = _ask("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
    found = []
    for line in answer.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[0].isdigit():
            index, uuid, name, memory = parts
            gigabytes = f"{round(int(memory) / 1024)}" if memory.isdigit() else ""
            found.append(Gpu(index, uuid, _model(name), gigabytes, "nvidia"))
    return found


def _amd() -> list[Gpu]:
    try:
        cards = json.loads(_ask("rocm-smi", "--showproductname", "--showuniqueid", "--json") or "{}")
    except ValueError:
        return []
    found = []
    for card, about in sorted(cards.items()):
        index = card.removeprefix("card")
        if index.isdigit() and isinstance(about, dict):
            name = about.get("Card Series") or about.get("Card series") or about.get("Card model") or ""
            found.append(Gpu(index, str(about.get("Unique ID", "")), _model(str(name)), "", "amd"))
    return sorted(found, key=lambda one: int(one.index))


def _model(name: str) -> str:
    """Return a model as people say it: `NVIDIA A100-SXM4-80GB` is `a100-sxm4-80gb`."""
    plain = name.lower().removeprefix("nvidia").removeprefix(" geforce").strip()
    return "-".join(plain.replace("/", " ").split())


def _ask(command: str, *options: str) -> str:
    path = shutil.which(command)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, *options], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def variables(labels: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the variables that let a program see these GPUs only.

    On AMD, ROCR chooses first, and HIP counts from 0 what is left.
    """
    indexes = [each["index"] for each in labels]
    chosen = ",".join(indexes)
    if labels[0].get("maker") == "amd":
        rest = ",".join(map(str, range(len(indexes))))
        return {"ROCR_VISIBLE_DEVICES": chosen, "HIP_VISIBLE_DEVICES": rest, "CUDA_VISIBLE_DEVICES": rest}
    return {"CUDA_VISIBLE_DEVICES": chosen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
