"""Writes this folder's GGUF files from the checkpoints `train.py` left in WORK.

    pip install torch tokenizers gguf
    python tests/models/export.py WORK

| file | what it is |
|---|---|
| target.gguf | `llama`, 3.8 M parameters, Q5_1 |
| draft.gguf | `llama`, 0.5 M, same tokenizer, learned from the target's logits |
| other-vocab.gguf | `llama`, untrained, another vocabulary of the same size: must be refused |
| mtp.gguf | `mimo2` trunk with one trained NextN head (dense FFN) |
| mtp-trunk.gguf | the same file without the head's tensors; the key says 1 all the same |
| mtp-head.gguf | the head alone with its embeddings, as `convert_hf_to_gguf.py --mtp` makes |
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from train import EOS, VOCAB, Block, Model, Shape, load

HERE = Path(__file__).parent
# Messages one after another: a base model continues the last one.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


class Gguf:
    """One file being written: matrices as Q5_1, vectors as F32.

    Not Q8_0: on x86 with AMX, llama.cpp (b114xx) crashes repacking Q8_0 matrices of these sizes.
    """

    def __init__(self, name: str, arch: str, title: str, vocab: Path) -> None:
        self.path = HERE / name
        self.writer = GGUFWriter(self.path, arch)
        self.writer.add_name(title)
        self.writer.add_file_type(9)  # LLAMA_FTYPE_MOSTLY_Q5_1
        self._vocabulary(vocab)

    def _vocabulary(self, vocab: Path) -> None:
        ids: dict[str, int] = json.loads((vocab / "vocab.json").read_text())
        tokens = sorted(ids, key=lambda t: ids[t])
        assert len(tokens) == VOCAB
        merges = (vocab / "merges.txt").read_text().splitlines()
        w = self.writer
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list(tokens)
        w.add_token_types([TokenType.CONTROL if t == EOS else TokenType.NORMAL for t in tokens])
        w.add_token_merges([m for m in merges if m and not m.startswith("#version")])
        w.add_bos_token_id(0)
        w.add_eos_token_id(0)
        w.add_add_bos_token(False)
        w.add_chat_template(TEMPLATE)

    def sizes(self, s: Shape, blocks: int) -> None:
        w = self.writer
        w.add_context_length(2048)
        w.add_embedding_length(s.d)
        w.add_block_count(blocks)
        w.add_feed_forward_length(s.ff)
        w.add_head_count(s.heads)
        w.add_head_count_kv(s.kv_heads)
        w.add_key_length(s.d // s.heads)
        w.add_value_length(s.d // s.heads)
        w.add_rope_dimension_count(s.d // s.heads)
        w.add_rope_freq_base(10000.0)
        w.add_layer_norm_rms_eps(1e-5)
        w.add_vocab_size(VOCAB)

    def add(self, name: str, value: torch.Tensor) -> None:
        data = value.detach().float().numpy().astype(np.float32)
        if data.ndim == 1:
            self.writer.add_tensor(name, data)
            return
        kind = GGMLQuantizationType.Q5_1
        self.writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)

    def block(self, i: int, b: Block, fused: bool) -> None:
        p = f"blk.{i}."
        self.add(p + "attn_norm.weight", b.attn_norm.weight)
        self.add(p + "ffn_norm.weight", b.ffn_norm.weight)
        if fused:
            self.add(p + "attn_qkv.weight", torch.cat((b.q.weight, b.k.weight, b.v.weight)))
        else:
            for part, layer in (("q", b.q), ("k", b.k), ("v", b.v)):
                self.add(f"{p}attn_{part}.weight", layer.weight)
        self.add(p + "attn_output.weight", b.o.weight)
        self.add(p + "ffn_gate.weight", b.gate.weight)
        self.add(p + "ffn_up.weight", b.up.weight)
        self.add(p + "ffn_down.weight", b.down.weight)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        print(f"{self.path.name}: {self.path.stat().st_size / 2**20:.2f} MiB")


def write_llama(name: str, title: str, model: Model, vocab: Path) -> None:
    out = Gguf(name, "llama", title, vocab)
    out.sizes(model.s, model.s.layers)
    out.add("token_embd.weight", model.embd.weight)  # the output matrix is the same one
    out.add("output_norm.weight", model.norm.weight)
    for i, block in enumerate(model.blocks):
        out.block(i, block, fused=False)
    out.close()


def write_mimo2(name: str, title: str, m: Model, vocab: Path, trunk: bool, head: bool) -> None:
    """llama.cpp wants one fused QKV per block and a dense FFN for this head (src/models/mimo2.cpp)."""
    out = Gguf(name, "mimo2", title, vocab)
    last = m.s.layers
    out.sizes(m.s, last + 1)
    w = out.writer
    w.add_nextn_predict_layers(1)
    w.add_expert_feed_forward_length(0)
    w.add_sliding_window(2048)
    # llama.cpp insists on one sliding layer; a window of the whole context changes nothing.
    w.add_sliding_window_pattern([True] + [False] * last)
    out.add("token_embd.weight", m.embd.weight)
    out.add("output.weight", m.embd.weight)
    out.add("output_norm.weight", m.norm.weight)
    for i, block in enumerate(m.blocks if trunk else []):
        out.block(i, block, fused=True)
    if head:
        out.block(last, m.mtp_block, fused=True)
        p = f"blk.{last}.nextn."
        out.add(p + "eh_proj.weight", m.eh.weight)
        out.add(p + "enorm.weight", m.enorm.weight)
        out.add(p + "hnorm.weight", m.hnorm.weight)
        out.add(p + "shared_head_norm.weight", m.mtp_norm.weight)
    out.close()


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("work", type=Path)
    work: Path = ap.parse_args().work
    write_llama("target.gguf", "Specllama Tiny Target", load("target", work), work)
    write_llama("draft.gguf", "Specllama Tiny Draft", load("draft", work), work)
    torch.manual_seed(2)
    stranger = Model(Shape(d=64, layers=1, heads=2, kv_heads=2, ff=128))
    write_llama("other-vocab.gguf", "Specllama Other Vocabulary", stranger, work / "other")
    m = load("mtp", work)
    write_mimo2("mtp.gguf", "Specllama Tiny MTP", m, work, trunk=True, head=True)
    write_mimo2("mtp-trunk.gguf", "Specllama Tiny MTP trunk", m, work, trunk=True, head=False)
    write_mimo2("mtp-head.gguf", "Specllama Tiny MTP head", m, work, trunk=False, head=True)


if __name__ == "__main__":
    main()
