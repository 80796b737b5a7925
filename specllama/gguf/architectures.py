"""What llama.cpp's architectures are, where the header alone does not tell.

Names as in `general.architecture` (llama.cpp b11434, src/llama-arch.cpp).
"""

from __future__ import annotations

# llm_arch_is_recurrent / llm_arch_is_hybrid
RECURRENT = frozenset("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7".split())
HYBRID = frozenset(
    "jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next "
    "kimi-linear bailingmoe3 kimi-k3 glm5-next qwen35 qwen35moe qwen4exp deepseek4 minimax-01".split()
)
# llm_arch_supports_rs_rollback: rejected tokens are undone without replaying the sequence
ROLLBACK = frozenset(
    "kimi-k3 qwen35 qwen35moe qwen4exp deepseek4 glm5-next nemotron_h nemotron_h_moe lfm2 lfm2moe "
    "bailingmoe3".split()
)
# Encoders and embedding models: nothing to decode, so nothing to speculate
EMBEDDING = frozenset(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "gemma-embedding llama-embed t5encoder".split()
)
# Drafters that are an architecture of their own
SIDECARS = frozenset("eagle3 dflash gemma4-assistant".split())


def memory(architecture: str) -> str:
    """How the architecture keeps its past: attention, hybrid or recurrent."""
    if architecture in RECURRENT:
        return "recurrent"
    return "hybrid" if architecture in HYBRID else "attention"
