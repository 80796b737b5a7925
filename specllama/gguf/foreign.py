"""Programs that make files llama.cpp cannot load: for messages, never for decisions.

Each function returns "" or a clause to append, starting with "; ".
"""

from __future__ import annotations

from collections.abc import Mapping

from specllama.gguf import architectures

# From the sources of these projects and reports about their files, until September 2026.
_ARCHITECTURES: Mapping[str, str] = {
    "gemma4_assistant": "an early conversion, before llama.cpp called it gemma4-assistant: convert it again",
    "gptoss": "it is Ollama's own conversion: get one made for llama.cpp (gpt-oss)",
    "mllama": "it is Ollama's own conversion, and llama.cpp does not support this model",
    "qwen25vl": "it is Ollama's own conversion: get one made for llama.cpp (qwen2vl)",
    "deepseekocr": "it is Ollama's own conversion: get one made for llama.cpp",
    "bitnet-b1.58": "it was made for Microsoft's BitNet, a fork of llama.cpp",
    "bitnet-25": "it was made for Microsoft's BitNet, a fork of llama.cpp",
}
_IMAGES = frozenset(
    "flux sd1 sd3 sdxl aura hidream cosmos ltxv hyvid wan lumina2 qwen_image pig".split()
)


def maker_of_architecture(arch: str) -> str:
    if arch in _ARCHITECTURES:
        return f"; {_ARCHITECTURES[arch]}"
    if arch in _IMAGES:
        return "; it is an image or video model, for ComfyUI-GGUF or stable-diffusion.cpp"
    if arch.endswith("_mtp"):
        # qwen35_mtp, qwen35moe_mtp: a head as an architecture of its own
        return (
            "; it was made by a branch with MTP support from before llama.cpp had it (b9180): "
            "get a newer conversion"
        )
    plain = _plain(arch)
    same = next((known for known in sorted(architectures.KNOWN) if _plain(known) == plain), None)
    if same is not None:
        return f"; llama.cpp calls it {same!r}: the file was converted by another program"
    return "; it needs a newer llama.cpp or the fork it was made for"


def maker_of_tensor(name: str) -> str:
    """For a tensor that no llama.cpp model has."""
    first = name.split(".", 1)[0]
    if first in ("v", "mm", "a", "vision_tower", "multi_modal_projector", "visual"):
        return (
            "; it is Ollama's format, with the vision part in the model file: get a conversion "
            "made for llama.cpp, with a separate mmproj file"
        )
    if first == "mtp":
        return "; the MTP head has another program's layout: get one converted by llama.cpp"
    if first in ("model", "transformer", "lm_head", "language_model"):
        return "; these are the original model's names: it was not converted for llama.cpp"
    return ""


def maker_of_type(kind: str) -> str:
    """For a tensor type as the reader calls it: "type 105". Ids: ik_llama.cpp, ggml.h;
    ROCmFPX, gguf-py/gguf/constants.py; llama.cpp's ggml.h for removed ones."""
    n = _number(kind)
    if n in (4, 5, 31, 32, 33, 36, 37, 38):
        return "; llama.cpp removed this type: get another quantisation"
    if 100 <= n <= 108:
        return "; it was made for ROCmFPX, a fork for AMD GPUs"
    if fork_of_type(kind):
        return "; it was made for ik_llama.cpp: use that, or get another quantisation"
    return "; it needs a newer llama.cpp or the fork it was made for"


def fork_of_type(kind: str) -> str:
    """The engine flavour (engine/capabilities.py) that supports the type, "" if none."""
    n = _number(kind)
    return "ik_llama" if 97 <= n <= 99 or 133 <= n <= 158 or 202 <= n <= 399 else ""


def _number(kind: str) -> int:
    number = kind.removeprefix("type ")
    return int(number) if number.isascii() and number.isdigit() else -1


def _plain(arch: str) -> str:
    return "".join(c for c in arch.lower() if c.isalnum())
