"""Headers of well-known models at their real dimensions, without their weights.

Each is a GGUF file with the real tensor table and sparse data, which takes no disk space.
`llama-fit-params` reads no weights, so it treats the file as the real model.
Dimensions: the public config.json of each model; tensors: llama.cpp's src/models/*.cpp
(b11434). The tokenizer is of the kind "none", which needs no token texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.zoo import Value, Vocab, write

Shape = Sequence[int]
Tensors = dict[str, Shape]


@dataclass(frozen=True)
class Giant:
    """Dimensions of one model. `more`: further keys under the architecture's prefix."""

    arch: str
    layers: int
    d: int
    ff: int
    heads: int
    kv: int | Sequence[int]
    vocab: int
    head: int = 128
    tied: bool = False
    nextn: int = 0
    more: Mapping[str, Value] = field(default_factory=dict)

    def key(self, name: str, default: int = 0) -> int:
        value = self.more.get(name, default)
        assert isinstance(value, int)
        return value

    def kv_of(self, i: int) -> int:
        return self.kv if isinstance(self.kv, int) else self.kv[i]


def build(folder: Path, name: str, vocab: Vocab | None = None) -> Path:
    """Writes (once) the header of GIANTS[name] and returns its path. With `vocab`, it has a
    tokenizer of that many tokens."""
    path = folder / f"{name}.gguf"
    if not path.exists():
        g = GIANTS[name]
        tensors = _model(g)
        tokenizer = vocab.fields() if vocab else {"tokenizer.ggml.model": "none"}
        write(path, g.arch, _fields(g, name) | tokenizer, tensors, _types(tensors))
    return path


def _fields(g: Giant, name: str) -> dict[str, Value]:
    a = g.arch
    out: dict[str, Value] = {
        "general.name": name,
        f"{a}.vocab_size": g.vocab,
        f"{a}.block_count": g.layers + g.nextn,
        f"{a}.context_length": 131072,
        f"{a}.embedding_length": g.d,
        f"{a}.feed_forward_length": g.ff,
        f"{a}.attention.head_count": g.heads,
        f"{a}.attention.head_count_kv": g.kv,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{a}.attention.layer_norm_epsilon": 1e-5,
    }
    if g.head and g.heads:
        out |= {f"{a}.attention.key_length": g.head, f"{a}.attention.value_length": g.head}
    if g.nextn:
        out[f"{a}.nextn_predict_layers"] = g.nextn
    return out | {f"{a}.{k}": v for k, v in g.more.items()}


def _types(tensors: Tensors) -> dict[str, str]:
    """As llama-quantize's Q4_K_M would: matrices Q4_K, output Q6_K, what does not divide Q8_0,
    vectors and small filters F32."""
    out = {}
    for name, shape in tensors.items():
        kind = "F32"
        matrix = len(shape) > 1 and min(shape[:2]) > 8 and "ssm_norm" not in name
        if matrix and not any(p in name for p in ("gate_inp", "time_mix_lerp", "conv")):
            kind = "Q6_K" if name == "output.weight" else "Q4_K"
            if shape[0] % 256:
                kind = "Q8_0" if shape[0] % 32 == 0 else "F16"
        out[name] = kind
    return out


def _model(g: Giant) -> Tensors:
    out: Tensors = {"token_embd.weight": (g.d, g.vocab)}
    out["token_embd_norm.weight" if g.arch.startswith("lfm2") else "output_norm.weight"] = (g.d,)
    if not g.tied:
        out["output.weight"] = (g.d, g.vocab)
    for i in range(g.layers + g.nextn):
        for name, shape in _BLOCKS[g.arch](g, i).items():
            out[f"blk.{i}.{name}"] = shape
        if i >= g.layers:
            out |= {
                f"blk.{i}.nextn.{n}.weight": (g.d,) for n in ("enorm", "hnorm", "shared_head_norm")
            }
            out[f"blk.{i}.nextn.eh_proj.weight"] = (2 * g.d, g.d)
    return out | (_EXTRA[g.arch](g) if g.arch in _EXTRA else {})


def _w(**tensors: Shape) -> Tensors:
    return {f"{name}.weight": shape for name, shape in tensors.items()}


def _attention(g: Giant, i: int, q_times: int = 1, head: int = 0, v: bool = True) -> Tensors:
    head = head or g.head
    q, kv = head * g.heads, head * g.kv_of(i)
    out = _w(attn_norm=(g.d,), attn_q=(g.d, q * q_times), attn_k=(g.d, kv), attn_output=(q, g.d))
    return out | (_w(attn_v=(g.d, kv)) if v else {})


def _bias(g: Giant, i: int) -> Tensors:
    kv = (g.head * g.kv_of(i),)
    return {"attn_q.bias": (g.head * g.heads,), "attn_k.bias": kv, "attn_v.bias": kv}


def _qk_norm(head: int) -> Tensors:
    return _w(attn_q_norm=(head,), attn_k_norm=(head,))


def _ffn(d: int, ff: int) -> Tensors:
    return _w(ffn_gate=(d, ff), ffn_up=(d, ff), ffn_down=(ff, d))


def _experts(g: Giant) -> Tensors:
    n, ff = g.key("expert_count"), g.key("expert_feed_forward_length", g.ff)
    return _w(
        ffn_gate_inp=(g.d, n),
        ffn_gate_exps=(g.d, ff, n),
        ffn_up_exps=(g.d, ff, n),
        ffn_down_exps=(ff, g.d, n),
    )


def _shared(d: int, ff: int) -> Tensors:
    return _w(ffn_gate_shexp=(d, ff), ffn_up_shexp=(d, ff), ffn_down_shexp=(ff, d))


def _llama(g: Giant, i: int) -> Tensors:
    return _attention(g, i) | _w(ffn_norm=(g.d,)) | _ffn(g.d, g.ff)


def _qwen2(g: Giant, i: int) -> Tensors:
    return _llama(g, i) | _bias(g, i)


def _qwen3(g: Giant, i: int) -> Tensors:
    return _llama(g, i) | _qk_norm(g.head)


def _qwen3moe(g: Giant, i: int) -> Tensors:
    return _attention(g, i) | _qk_norm(g.head) | _w(ffn_norm=(g.d,)) | _experts(g)


def _delta_net(g: Giant, i: int, joint_ba: bool) -> Tensors:
    """A gated-delta-net layer, every fourth one full attention (and the MTP head's)."""
    if i >= g.layers or (i + 1) % 4 == 0:
        return _attention(g, i, q_times=2) | _qk_norm(g.head) | _w(post_attention_norm=(g.d,))
    state, value = g.key("ssm.state_size"), g.key("ssm.inner_size")
    rank, conv = g.key("ssm.time_step_rank"), 2 * state * g.key("ssm.group_count") + value
    out = _w(
        attn_norm=(g.d,),
        post_attention_norm=(g.d,),
        attn_qkv=(g.d, conv),
        attn_gate=(g.d, value),
        ssm_conv1d=(4, conv),
        ssm_norm=(state,),
        ssm_out=(value, g.d),
    )
    ba = _w(ssm_ba=(g.d, 2 * rank)) if joint_ba else _w(ssm_beta=(g.d, rank), ssm_alpha=(g.d, rank))
    return out | ba | {"ssm_dt.bias": (rank,), "ssm_a": (rank,)}


def _qwen35(g: Giant, i: int) -> Tensors:
    return _delta_net(g, i, joint_ba=False) | _ffn(g.d, g.ff)


def _qwen35moe(g: Giant, i: int, joint_ba: bool = False) -> Tensors:
    ff = g.key("expert_shared_feed_forward_length")
    shared = _shared(g.d, ff) | _w(ffn_gate_inp_shexp=(g.d,))
    return _delta_net(g, i, joint_ba) | _experts(g) | shared


def _gemma2(g: Giant, i: int) -> Tensors:
    return _llama(g, i) | _w(post_attention_norm=(g.d,), post_ffw_norm=(g.d,))


def _gemma3(g: Giant, i: int) -> Tensors:
    return _gemma2(g, i) | _qk_norm(g.head)


def _gemma4(g: Giant, i: int) -> Tensors:
    pattern = g.more["attention.sliding_window_pattern"]
    assert isinstance(pattern, Sequence)
    swa = bool(pattern[i])
    head = g.key("attention.key_length_swa") if swa else g.head
    out = _attention(g, i, head=head, v=swa or "shared_kv_layers" in str(g.more))
    out |= _qk_norm(head) | _ffn(g.d, g.ff) | _w(ffn_norm=(g.d,), layer_output_scale=(1,))
    out |= _w(post_attention_norm=(g.d,), post_ffw_norm=(g.d,))
    if "expert_count" in g.more:
        out |= _experts(g) | {"ffn_gate_inp.scale": (g.d,)}
        out |= _w(pre_ffw_norm_2=(g.d,), post_ffw_norm_1=(g.d,), post_ffw_norm_2=(g.d,))
    if per_layer := g.key("embedding_length_per_layer_input"):
        out |= _w(inp_gate=(g.d, per_layer), proj=(per_layer, g.d), post_norm=(g.d,))
    return out


def _gemma4_extra(g: Giant) -> Tensors:
    out = _w(rope_freqs=(g.head // 2,))
    if n := g.key("embedding_length_per_layer_input"):
        out |= _w(
            per_layer_token_embd=(n * g.layers, g.vocab),
            per_layer_model_proj=(g.d, n * g.layers),
            per_layer_proj_norm=(n,),
        )
    return out


def _phi3(g: Giant, i: int) -> Tensors:
    return _w(
        attn_norm=(g.d,),
        attn_qkv=(g.d, g.head * (g.heads + 2 * g.kv_of(i))),
        attn_output=(g.head * g.heads, g.d),
        ffn_norm=(g.d,),
        ffn_up=(g.d, 2 * g.ff),
        ffn_down=(g.ff, g.d),
    )


def _gpt_oss(g: Giant, i: int) -> Tensors:
    n, ff = g.key("expert_count"), g.key("expert_feed_forward_length")
    out = _attention(g, i) | _bias(g, i) | _experts(g)
    out |= _w(post_attention_norm=(g.d,), attn_sinks=(g.heads,))
    return out | {
        "attn_output.bias": (g.d,),
        "ffn_gate_inp.bias": (n,),
        "ffn_gate_exps.bias": (ff, n),
        "ffn_up_exps.bias": (ff, n),
        "ffn_down_exps.bias": (g.d, n),
    }


def _glm4moe(g: Giant, i: int) -> Tensors:
    out = _attention(g, i) | _bias(g, i) | _w(post_attention_norm=(g.d,))
    if i < g.key("leading_dense_block_count"):
        return out | _ffn(g.d, g.ff)
    shared = _shared(g.d, g.key("expert_feed_forward_length"))
    return out | _experts(g) | shared | {"exp_probs_b.bias": (g.key("expert_count"),)}


def _deepseek2(g: Giant, i: int) -> Tensors:
    k, v = g.key("attention.key_length_mla"), g.key("attention.value_length_mla")
    rank, rope = g.key("attention.kv_lora_rank"), g.key("rope.dimension_count")
    out = _w(
        attn_norm=(g.d,),
        attn_kv_a_norm=(rank,),
        attn_kv_a_mqa=(g.d, rank + rope),
        attn_k_b=(k - rope, rank, g.heads),
        attn_v_b=(rank, v, g.heads),
        attn_output=(g.heads * v, g.d),
        ffn_norm=(g.d,),
    )
    if q := g.key("attention.q_lora_rank"):
        out |= _w(attn_q_a_norm=(q,), attn_q_a=(g.d, q), attn_q_b=(q, g.heads * k))
    else:
        out |= _w(attn_q=(g.d, g.heads * k))
    if i < g.key("leading_dense_block_count"):
        return out | _ffn(g.d, g.ff)
    shared = g.key("expert_feed_forward_length") * g.key("expert_shared_count")
    return out | _experts(g) | _shared(g.d, shared)


def _minimax_m2(g: Giant, i: int) -> Tensors:
    norm = _w(attn_q_norm=(g.head * g.heads,), attn_k_norm=(g.head * g.kv_of(i),), ffn_norm=(g.d,))
    bias = {"exp_probs_b.bias": (g.key("expert_count"),)}
    return _attention(g, i) | norm | _experts(g) | bias


def _lfm2(g: Giant, i: int) -> Tensors:
    out = _w(attn_norm=(g.d,), ffn_norm=(g.d,)) | _ffn(g.d, g.ff)
    if g.kv_of(i):
        return out | _attention(g, i) | _qk_norm(g.head)
    conv = (g.key("shortconv.l_cache"), g.d)
    return out | {
        "shortconv.conv.weight": conv,
        "shortconv.in_proj.weight": (g.d, 3 * g.d),
        "shortconv.out_proj.weight": (g.d, g.d),
    }


def _mamba2(g: Giant, i: int) -> Tensors:
    inner, rank = g.key("ssm.inner_size"), g.key("ssm.time_step_rank")
    groups = g.key("ssm.group_count")
    conv = inner + 2 * groups * g.key("ssm.state_size")
    out = _w(
        attn_norm=(g.d,),
        ssm_in=(g.d, inner + conv + rank),
        ssm_conv1d=(g.key("ssm.conv_kernel"), conv),
        ssm_norm=(inner // groups, groups),
        ssm_out=(inner, g.d),
    )
    bias: Tensors = {"ssm_conv1d.bias": (conv,), "ssm_dt.bias": (rank,)}
    return out | bias | {"ssm_a": (1, rank), "ssm_d": (1, rank)}


def _falcon_h1(g: Giant, i: int) -> Tensors:
    out = _mamba2(g, i) | _attention(g, i) | _ffn(g.d, g.ff) | {"ffn_norm": (g.d,)}
    return {k: v for k, v in out.items() if k != "ssm_norm.weight"}


def _granite_hybrid(g: Giant, i: int) -> Tensors:
    mixer = _attention(g, i) if g.kv_of(i) else _mamba2(g, i)
    shared = _shared(g.d, g.key("expert_shared_feed_forward_length"))
    return mixer | _w(ffn_norm=(g.d,)) | _experts(g) | shared


def _rwkv7(g: Giant, i: int) -> Tensors:
    d = g.d
    decay, iclr = g.key("attention.decay_lora_rank"), g.key("attention.iclr_lora_rank")
    value = g.key("attention.value_residual_mix_lora_rank") if i else iclr
    gate = g.key("attention.gate_lora_rank")
    vectors = ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")
    out: Tensors = {f"time_mix_{n}.weight": (d,) for n in vectors}
    for letter, rank in (("w", decay), ("a", iclr), ("v", value), ("g", gate)):
        out |= {f"time_mix_{letter}1.weight": (d, rank), f"time_mix_{letter}2.weight": (rank, d)}
    for n in ("key", "value", "receptance", "output"):
        out[f"time_mix_{n}.weight"] = (d, d)
    out |= _w(attn_norm=(d,), attn_norm_2=(d,), channel_mix_lerp_k=(d, 1, 1))
    out |= {"attn_norm.bias": (d,), "attn_norm_2.bias": (d,), "time_mix_ln.bias": (d,)}
    out |= _w(channel_mix_key=(d, g.ff), channel_mix_value=(g.ff, d))
    return out | _w(time_mix_lerp_fused=(d, 1, 1, 6))


def _rwkv7_extra(g: Giant) -> Tensors:
    norm: Tensors = {"token_embd_norm.weight": (g.d,), "token_embd_norm.bias": (g.d,)}
    return norm | {"output_norm.bias": (g.d,)}


def _command_r(g: Giant, i: int) -> Tensors:
    return _attention(g, i) | _ffn(g.d, g.ff)


_BLOCKS: Mapping[str, Callable[[Giant, int], Tensors]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "qwen3next": lambda g, i: _qwen35moe(g, i, joint_ba=True),
    "qwen35": _qwen35,
    "qwen35moe": _qwen35moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "phi3": _phi3,
    "gpt-oss": _gpt_oss,
    "glm4moe": _glm4moe,
    "deepseek2": _deepseek2,
    "minimax-m2": _minimax_m2,
    "lfm2": _lfm2,
    "mamba2": _mamba2,
    "falcon-h1": _falcon_h1,
    "granitehybrid": _granite_hybrid,
    "rwkv7": _rwkv7,
    "command-r": _command_r,
}
_EXTRA: Mapping[str, Callable[[Giant], Tensors]] = {
    "llama": lambda g: _w(rope_freqs=(g.head // 2,)),
    "gemma4": _gemma4_extra,
    "rwkv7": _rwkv7_extra,
}


def _moe(count: int, used: int, ff: int, shared: int = 0) -> dict[str, Value]:
    out: dict[str, Value] = {"expert_count": count, "expert_used_count": used}
    out["expert_feed_forward_length"] = ff
    return out | ({"expert_shared_feed_forward_length": shared} if shared else {})


def _ssm(inner: int, state: int, groups: int, rank: int) -> dict[str, Value]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.group_count": groups,
        "ssm.time_step_rank": rank,
    }


_MROPE: dict[str, Value] = {"rope.dimension_sections": (11, 11, 10, 0), "rope.dimension_count": 64}
_SIX = (1, 1, 1, 1, 1, 0)  # five sliding-window layers, then one with full attention

# fmt: off
GIANTS: Mapping[str, Giant] = {
    "llama-3.1-8b": Giant("llama", 32, 4096, 14336, 32, 8, 128256),
    "llama-3.1-70b": Giant("llama", 80, 8192, 28672, 64, 8, 128256),
    "llama-3.1-405b": Giant("llama", 126, 16384, 53248, 128, 8, 128256),
    "llama-3.2-1b": Giant("llama", 16, 2048, 8192, 32, 8, 128256, head=64, tied=True),
    "qwen2.5-0.5b": Giant("qwen2", 24, 896, 4864, 14, 2, 151936, head=64, tied=True),
    "qwen2.5-32b": Giant("qwen2", 64, 5120, 27648, 40, 8, 152064),
    "qwen3-0.6b": Giant("qwen3", 28, 1024, 3072, 16, 8, 151936, tied=True),
    "qwen3-32b": Giant("qwen3", 64, 5120, 25600, 64, 8, 151936),
    "qwen3-30b-a3b": Giant("qwen3moe", 48, 2048, 6144, 32, 4, 151936, more=_moe(128, 8, 768)),
    "qwen3-235b-a22b": Giant("qwen3moe", 94, 4096, 12288, 64, 4, 151936, more=_moe(128, 8, 1536)),
    "qwen3-next-80b":
        Giant("qwen3next", 48, 2048, 5120, 16, 2, 151936, 256, more=_moe(512, 10, 512, 512) |
        _ssm(4096, 128, 16, 32) | {"rope.dimension_count": 64}),
    "qwen3.5-0.8b":
        Giant("qwen35", 24, 1024, 3584, 8, 2, 248320, 256, tied=True, more=_ssm(2048, 128, 16, 16) |
        _MROPE),
    "qwen3.5-27b":
        Giant("qwen35", 64, 5120, 17408, 24, 4, 248320, 256, more=_ssm(6144, 128, 16, 48) | _MROPE),
    "qwen3.6-27b-mtp":
        Giant("qwen35", 64, 5120, 17408, 24, 4, 248320, 256, nextn=1, more=_ssm(6144, 128, 16, 48) |
        _MROPE),
    "qwen3.5-35b-a3b":
        Giant("qwen35moe", 40, 2048, 512, 16, 2, 248320, 256, more=_moe(256, 8, 512, 512) |
        _ssm(4096, 128, 16, 32) | _MROPE),
    "qwen3.6-35b-a3b-mtp":
        Giant("qwen35moe", 40, 2048, 512, 16, 2, 248320, 256, nextn=1, more=_moe(256, 8, 512, 512) |
        _ssm(4096, 128, 16, 32) | _MROPE),
    "gemma-2-2b":
        Giant("gemma2", 26, 2304, 9216, 8, 4, 256000, 256, True, more={"attention.sliding_window":
        4096}),
    "gemma-2-27b":
        Giant("gemma2", 46, 4608, 36864, 32, 16, 256000, tied=True,
        more={"attention.sliding_window": 4096}),
    "gemma-3-1b":
        Giant("gemma3", 26, 1152, 6912, 4, 1, 262144, 256, True, more={"attention.sliding_window":
        512}),
    "gemma-3-27b":
        Giant("gemma3", 62, 5376, 21504, 32, 16, 262208, tied=True,
        more={"attention.sliding_window": 1024}),
    "gemma-4-31b":
        Giant("gemma4", 60, 5376, 21504, 32, (16, 16, 16, 16, 16, 4) * 10, 262144, 512, True,
        more={"attention.sliding_window": 1024, "attention.sliding_window_pattern": _SIX * 10,
        "attention.key_length_swa": 256, "attention.value_length_swa": 256,
        "rope.dimension_count_swa": 256, "embedding_length_per_layer_input": 0}),
    "gemma-4-e4b":
        Giant("gemma4", 42, 2560, 10240, 8, 2, 262144, 512, True, more={"attention.sliding_window":
        512, "attention.sliding_window_pattern": _SIX * 7, "attention.key_length_swa": 256,
        "attention.value_length_swa": 256, "rope.dimension_count_swa": 256,
        "embedding_length_per_layer_input": 256, "attention.shared_kv_layers": 18}),
    "gemma-4-26b-a4b":
        Giant("gemma4", 30, 2816, 2112, 16, (8, 8, 8, 8, 8, 2) * 5, 262144, 512, True,
        more=_moe(128, 8, 704) | {"attention.sliding_window": 1024,
        "attention.sliding_window_pattern": _SIX * 5, "attention.key_length_swa": 256,
        "attention.value_length_swa": 256, "rope.dimension_count_swa": 256,
        "embedding_length_per_layer_input": 0}),
    "mistral-small-24b": Giant("llama", 40, 5120, 32768, 32, 8, 131072),
    "mistral-nemo-12b": Giant("llama", 40, 5120, 14336, 32, 8, 131072),
    "phi-3-mini": Giant("phi3", 32, 3072, 8192, 32, 32, 32064, 96),
    "phi-4": Giant("phi3", 40, 5120, 17920, 40, 10, 100352),
    "gpt-oss-20b":
        Giant("gpt-oss", 24, 2880, 2880, 64, 8, 201088, 64, more=_moe(32, 4, 2880) |
        {"attention.sliding_window": 128}),
    "gpt-oss-120b":
        Giant("gpt-oss", 36, 2880, 2880, 64, 8, 201088, 64, more=_moe(128, 4, 2880) |
        {"attention.sliding_window": 128}),
    "glm-4.5-air":
        Giant("glm4moe", 46, 4096, 10944, 96, 8, 151552, nextn=1, more=_moe(128, 8, 1408) |
        {"expert_shared_count": 1, "leading_dense_block_count": 1, "rope.dimension_count": 64}),
    "deepseek-v2-lite":
        Giant("deepseek2", 27, 2048, 10944, 16, 1, 102400, 0, more=_moe(64, 6, 1408) |
        {"expert_shared_count": 2, "leading_dense_block_count": 1, "rope.dimension_count": 64,
        "attention.kv_lora_rank": 512, "attention.key_length": 576, "attention.value_length": 512,
        "attention.key_length_mla": 192, "attention.value_length_mla": 128}),
    "deepseek-v3":
        Giant("deepseek2", 61, 7168, 18432, 128, 1, 129280, 0, more=_moe(256, 8, 2048) |
        {"expert_shared_count": 1, "leading_dense_block_count": 3, "rope.dimension_count": 64,
        "attention.kv_lora_rank": 512, "attention.q_lora_rank": 1536, "attention.key_length": 576,
        "attention.value_length": 512, "attention.key_length_mla": 192,
        "attention.value_length_mla": 128}),
    "minimax-m2":
        Giant("minimax-m2", 62, 3072, 1536, 48, 8, 200064, more=_moe(256, 8, 1536) |
        {"rope.dimension_count": 64, "expert_gating_func": 2}),
    "lfm2-1.2b":
        Giant("lfm2", 16, 2048, 8192, 32, (0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0), 65536,
        64, True, more={"shortconv.l_cache": 3}),
    "codestral-mamba-7b": Giant("mamba2", 64, 4096, 0, 0, 0, 32768, more=_ssm(8192, 128, 8, 128)),
    "falcon-h1-7b":
        Giant("falcon-h1", 44, 3072, 12288, 12, 2, 130048, more=_ssm(3072, 256, 1, 24)),
    "granite-4-tiny":
        Giant("granitehybrid", 40, 1536, 512, 12, tuple(4 if i % 10 == 5 else 0 for i in
        range(40)), 100352, tied=True, more=_moe(64, 6, 512, 1024) | _ssm(3072, 128, 1, 48)),
    "rwkv7-2.9b":
        Giant("rwkv7", 32, 2560, 10240, 0, 0, 65536, more={"wkv.head_size": 64,
        "attention.decay_lora_rank": 96, "attention.iclr_lora_rank": 96,
        "attention.value_residual_mix_lora_rank": 64, "attention.gate_lora_rank": 320}),
    "command-r-35b": Giant("command-r", 40, 8192, 22528, 64, 64, 256000, tied=True),
    "command-r-08-2024": Giant("command-r", 40, 8192, 24576, 64, 8, 256000, tied=True),
}
# fmt: on
