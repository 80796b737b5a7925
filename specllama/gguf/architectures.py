"""Properties of llama.cpp's architectures that the header does not contain.

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
# Encoders and embedding models: no decoding, so no speculation
EMBEDDING = frozenset(
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert "
    "gemma-embedding llama-embed t5encoder".split()
)
# All architectures of this build (LLM_ARCH_NAMES), and the prefixes of their tensor names
# (LLM_TENSOR_NAMES). A newer build may have more.
KNOWN_BUILD = 11434
KNOWN = frozenset(
    "clip llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bert "
    "modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom "
    "stablelm qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 "
    "qwen35moe qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3 codeshell orion internlm2 minicpm "
    "minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant gemma-embedding starcoder2 "
    "mamba mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo olmo2 "
    "olmoe muse-glimmer openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 "
    "chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais jais2 nemotron nemotron_h "
    "nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite granitemoe "
    "granitehybrid graniteswitch granite_swa chameleon wavtokenizer-dec plm bailingmoe "
    "bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe "
    "hunyuan-moe hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream "
    "smallthinker llada llada-moe seed_oss grovemoe apertus minimax-01 hrm_text minimax-m2 "
    "minimax-m3 cogvlm rnd1 pangu-embedded mistral3 eagle3 dflash mistral4 paddleocr mimo2 "
    "step35 spark2_5 llama-embed maincoder kimi-linear kimi-k3 glm5-next talkie mellum nanbeige "
    "qwen3tts pockettts".split()
)
TENSORS = frozenset(
    "altup_proj altup_unembd_proj blk cls conf_proj conv1d convnext d2t dec dense_2 dense_3 enc "
    "fc hrm markov_w1 markov_w2 masked_embd_centroids masked_embd_ordering nextn output "
    "output_hc_base output_hc_down output_hc_fn output_hc_norm output_hc_scale output_hc_up "
    "output_norm output_res_score per_layer_model_proj per_layer_proj_norm per_layer_token_embd "
    "position_embd posnet rope_factors_long rope_factors_short rope_freqs selector_hidden "
    "selector_predecessor selector_successor token_embd token_embd_norm token_types".split()
)
# Drafters with an architecture of their own
SIDECARS = frozenset("eagle3 dflash gemma4-assistant".split())
# Possible names of a converted P-EAGLE head: no llama.cpp build supports one
P_EAGLE = frozenset("p-eagle peagle p_eagle".split())


def memory(architecture: str) -> str:
    """The architecture's kind of memory: attention, hybrid or recurrent."""
    if architecture in RECURRENT:
        return "recurrent"
    return "hybrid" if architecture in HYBRID else "attention"
