"""A decision in other people's formats: one module per format, imported when it is asked for.

A module has `write(decision) -> WrittenFiles`. It raises FormatError for a decision that its format
cannot say.
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
# Those of engines that read no GGUF files, so that they are told of Hugging Face repositories.
HF_FORMATS = tuple(f for f in FORMATS if f.startswith(("vllm", "sglang", "tensorrt-llm")))


def write(name: str, decision: Decision) -> WrittenFiles:
    """The decision in the format `name`. Raises UsageError when there is none of that name and
    FormatError when it cannot say this decision."""
    where = FORMATS.get(name)
    if where is None:
        raise UsageError(
            f"--format {name}: there is no such format", f"Formats: {', '.join(FORMATS)}."
        )
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
    "write",
]
