"""Output formats of `specllama plan`: one module each, imported on use.

A module has `write(decision) -> WrittenFiles`. It raises FormatError for a decision that its format
cannot express.
"""

from __future__ import annotations

from importlib import import_module

from specllama.errors import UsageError
from specllama.formats.base import Decision, Deployment, FormatError, WrittenFiles

# Format → the module that writes it, and the function there when it is not `write`.
FORMATS: dict[str, str] = {
    "shell": "shell",
    "powershell": "powershell",
    "json": "as_json",
    "llama-swap": "llama_swap",
    "preset": "preset",
    "systemd": "systemd",
    "launchd": "launchd",
    "compose": "compose",
    "kubernetes": "kubernetes",
    "vllm": "vllm",
    "vllm-compose": "cluster:vllm_compose",
    "vllm-kubernetes": "cluster:vllm_kubernetes",
    "sglang": "sglang",
    "sglang-compose": "cluster:sglang_compose",
    "sglang-kubernetes": "cluster:sglang_kubernetes",
    "tensorrt-llm": "tensorrt_llm",
}
# Formats of engines that do not read GGUF files: they name Hugging Face repositories.
HF_FORMATS = tuple(f for f in FORMATS if f.startswith(("vllm", "sglang", "tensorrt-llm")))


def write_format(name: str, decision: Decision) -> WrittenFiles:
    """The decision in the format `name`. Raises UsageError for an unknown format and FormatError
    when the format cannot express this decision."""
    where = FORMATS.get(name)
    if where is None:
        raise UsageError(f"--format {name}: unknown format", f"Formats: {', '.join(FORMATS)}.")
    module, _, function = where.partition(":")
    writer = getattr(import_module(f"specllama.formats.{module}"), function or "write")
    written = writer(decision)
    assert isinstance(written, WrittenFiles)
    return written


__all__ = [
    "FORMATS",
    "HF_FORMATS",
    "Decision",
    "Deployment",
    "FormatError",
    "WrittenFiles",
    "write_format",
]
