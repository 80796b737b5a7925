"""Writes a drafter's GGUF with the target's tokenizer, matrices Q5_1 and vectors F32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quantize
from torch import Tensor

from tests.models.sidecars.target import TARGET

# Not Q8_0: on x86 with AMX, llama.cpp (b114xx) crashes repacking Q8_0 matrices of these sizes.
MATRIX = GGMLQuantizationType.Q5_1


class SidecarFile:
    """One file being written; `sizes` first, then `writer`'s own keys, `add`, `close`."""

    def __init__(self, path: Path, arch: str, title: str) -> None:
        self.path = path
        self.writer = GGUFWriter(path, arch)
        self.arch = arch
        self.writer.add_name(title)
        self.writer.add_file_type(9)  # LLAMA_FTYPE_MOSTLY_Q5_1
        self._copy_tokenizer()

    def _copy_tokenizer(self) -> None:
        for name, field in GGUFReader(TARGET).fields.items():
            if not name.startswith("tokenizer.") or name == "tokenizer.chat_template":
                continue
            kind = field.types[0]
            value = field.contents()
            if kind == GGUFValueType.ARRAY:
                self.writer.add_array(name, value)
            else:
                self.writer.add_key_value(name, value, kind)

    def sizes(
        self, width: int, layers: int, ff: int, heads: int, kv_heads: int, head_size: int
    ) -> None:
        w = self.writer
        w.add_context_length(2048)
        w.add_embedding_length(width)
        w.add_block_count(layers)
        w.add_feed_forward_length(ff)
        w.add_head_count(heads)
        w.add_head_count_kv(kv_heads)
        w.add_key_length(head_size)
        w.add_value_length(head_size)
        w.add_rope_dimension_count(head_size)
        w.add_rope_freq_base(10000.0)
        w.add_layer_norm_rms_eps(1e-5)

    def add(self, name: str, value: Tensor) -> None:
        data = value.detach().numpy().astype(np.float32)
        if data.ndim == 1:
            self.writer.add_tensor(name, data)
        else:
            self.writer.add_tensor(name, quantize(data, MATRIX), raw_dtype=MATRIX)

    def close(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
        print(f"{self.path.name}: {self.path.stat().st_size / 2**20:.2f} MiB")
