"""Who makes files that llama.cpp does not load: for messages, never for decisions.

Each answer is "" or a sentence to append, from "; " on.
"""

from __future__ import annotations

from collections.abc import Mapping

from specllama.gguf import architectures

# Read in these projects' sources and in reports about their files, until September 2026.
_ARCHITECTURES: Mapping[str, str] = {
    "gemma4_assistant": "converted before llama.cpp took it in as gemma4-assistant: convert it anew",
    "gptoss": "Ollama's own conversions are called so: get one made for llama.cpp (gpt-oss)",
    "mllama": "Ollama's own conversions are called so, llama.cpp has no such model",
    "qwen25vl": "Ollama's own conversions are called so: get one made for llama.cpp (qwen2vl)",
    "deepseekocr": "Ollama's own conversions are called so: get one made for llama.cpp",
    "bitnet-b1.58": "Microsoft's BitNet, a fork of llama.cpp, makes and runs such files",
    "bitnet-25": "Microsoft's BitNet, a fork of llama.cpp, makes and runs such files",
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
            "; branches with MTP from before llama.cpp's own (b9180) made such files: "
            "get a newer conversion"
        )
    plain = _plain(arch)
    same = next((known for known in sorted(architectures.KNOWN) if _plain(known) == plain), None)
    if same is not None:
        return f"; llama.cpp spells it {same!r}: another program converted this file"
    return "; it needs a newer llama.cpp or the fork it was made for"


def maker_of_tensor(name: str) -> str:
    """Of a tensor that no model of llama.cpp has."""
    first = name.split(".", 1)[0]
    if first in ("v", "mm", "a", "vision_tower", "multi_modal_projector", "visual"):
        return (
            "; Ollama keeps the vision part in the model's own file, llama.cpp in one of its own "
            "(mmproj): get a conversion made for llama.cpp"
        )
    if first == "mtp":
        return "; an MTP head in another program's layout: get one converted by llama.cpp"
    if first in ("model", "transformer", "lm_head", "language_model"):
        return "; they are the names of the original model: it was not converted for llama.cpp"
    return ""


def maker_of_type(kind: str) -> str:
    """Of a tensor type as the reader names it: "type 105". Ids: ik_llama.cpp, ggml.h;
    ROCmFPX, gguf-py/gguf/constants.py; llama.cpp's ggml.h for the removed ones."""
    n = _number(kind)
    if n in (4, 5, 31, 32, 33, 36, 37, 38):
        return "; llama.cpp took this type out again: get another quantisation"
    if 100 <= n <= 108:
        return "; ROCmFPX, a fork for AMD cards, makes such files"
    if fork_of_type(kind):
        return "; ik_llama.cpp makes such files: serve it with that, or get another quantisation"
    return "; it needs a newer llama.cpp or the fork it was made for"


def fork_of_type(kind: str) -> str:
    """The flavour of an engine (engine/capabilities.py) that has the type, "" for none."""
    n = _number(kind)
    return "ik_llama" if 97 <= n <= 99 or 133 <= n <= 158 or 202 <= n <= 399 else ""


def _number(kind: str) -> int:
    number = kind.removeprefix("type ")
    return int(number) if number.isascii() and number.isdigit() else -1


def _plain(arch: str) -> str:
    return "".join(c for c in arch.lower() if c.isalnum())
