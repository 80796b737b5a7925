"""Drafters as published: a Hugging Face folder with config.json and safetensors, which llama.cpp
cannot load, and P-EAGLE, which it does not support in any format.

Keys: transformers' config.json; vLLM's transformers_utils/configs/speculators/algos.py and
v1/spec_decode/llm_base_proposer.py (0.22: `parallel_drafting`, `ptd_token_id`, `pard_token`);
llama.cpp's conversion/llama.py, qwen.py, gemma.py and deepseek.py (b11434).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specllama.errors import UsageError

P_EAGLE = "p-eagle"
_NAMES = {P_EAGLE: "P-EAGLE", "eagle3": "EAGLE-3", "dflash": "DFlash", "dspark": "DSpark"}
_LARGEST = 2**20  # bytes of a config.json; real ones have a few thousand
_FOLDERS = 1000  # maximum number of subfolders to search
_PARALLEL = ("parallel_drafting", "ptd_token_id", "pard_token")

NO_P_EAGLE = (
    "llama.cpp does not support P-EAGLE (EAGLE-3 that drafts all tokens in one pass); its parallel "
    "drafters are DFlash and DSpark"
)
P_EAGLE_IN_VLLM = (
    "vLLM supports P-EAGLE (parallel_drafting): "
    "specllama plan MODEL --format vllm --draft-repo OWNER/NAME"
)


@dataclass(frozen=True)
class Checkpoint:
    """A folder in Hugging Face's format. `kind`: p-eagle, eagle3, dflash, dspark or model."""

    folder: Path
    kind: str
    layers: int
    hidden_size: int

    @property
    def drafts(self) -> bool:
        return self.kind != "model"

    @property
    def what(self) -> str:
        """A description for messages."""
        name = f"{_NAMES[self.kind]} drafter" if self.drafts else "model"
        return f"a Hugging Face checkpoint ({name}), not a GGUF file"

    @property
    def advice(self) -> str:
        """What to do with it."""
        if self.kind == P_EAGLE:
            return f"{NO_P_EAGLE}. {P_EAGLE_IN_VLLM}"
        target = " --target-model-dir TARGET" if self.drafts else ""
        return f"Convert it: python convert_hf_to_gguf.py {self.folder}{target}"


def checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint in a folder, or of a config.json or .safetensors file in it; None if there is
    none."""
    folder = path if os.path.isdir(path) else path.parent  # which never raises
    if path != folder and path.suffix not in (".json", ".safetensors"):
        return None
    config = _config(path if path.suffix == ".json" else folder / "config.json")
    if config is None:
        return None
    kind = _kind(config)
    layered = {**config, **_part(config, "transformer_layer_config")}  # speculators' files
    return Checkpoint(
        folder, kind, _number(layered, "num_hidden_layers"), _number(layered, "hidden_size")
    )


def reject_checkpoint(path: Path) -> None:
    """Raises UsageError if the path is a checkpoint instead of a GGUF file."""
    if (found := checkpoint(path)) is not None:
        raise UsageError(f"{path}: {found.what}", found.advice)


def find_drafters(folders: Iterable[Path]) -> Iterator[Checkpoint]:
    """Drafters in Hugging Face format in `folders` and their direct subfolders."""
    for folder in folders:
        for place in (folder, *_below(folder)):
            found = checkpoint(place)
            if found is not None and found.drafts:
                yield found


def _below(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(e.path) for e in entries if e.is_dir())[:_FOLDERS]
    except OSError:
        return []


def _config(path: Path) -> Mapping[str, Any] | None:
    try:
        with path.open("rb") as f:
            found = json.loads(f.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return None
    known = ("architectures", "model_type", "speculators_model_type")
    return found if isinstance(found, dict) and any(k in found for k in known) else None


def _kind(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    names = names if isinstance(names, list) else []
    names_text = " ".join([str(config.get("speculators_model_type", "")), *map(str, names)]).lower()
    if "peagle" in names_text:
        return P_EAGLE
    if "eagle3" in names_text or (
        "draft_vocab_size" in config and "dflash" not in names_text + str(config)
    ):
        many = _number(config, "num_hidden_layers") > 1  # an EAGLE-3 head has one
        return P_EAGLE if many or any(config.get(k) for k in _PARALLEL) else "eagle3"
    if "dspark" in names_text:
        return "dspark"
    return "dflash" if "dflash" in names_text else "model"


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def _number(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
