"""Build-dependent facts of llama.cpp that `--help` does not show, each with its source.

Builds as llama.cpp numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """True for builds in [first, last] of mainline llama.cpp. `title`: what users read."""

    first: int
    last: int | None
    title: str
    source: str


# Facts that the help text does not show. Builds as llama.cpp numbers them.
FACTS: Mapping[str, Fact] = {
    "eagle3_drafts": Fact(
        9611, None, "draft-eagle3 works", "PR 18039; b9601 lists it but it is a stub"
    ),
    "mtp_cannot_start": Fact(10741, 10748, "models with an MTP head fail to start", "issue 28196"),
    "loads_mtp_on_demand": Fact(
        10218, None, "MTP blocks are loaded only for draft-mtp", "common.cpp, load_mtp"
    ),
    "few_outputs": Fact(
        9493, None, "the logits buffer is sized for drafts, not for a whole ubatch", "PR 23861"
    ),
    "fit_counts_draft": Fact(
        10630, None, "--fit leaves room for the draft", "common/fit.cpp, extra"
    ),
    "fit_adds_draft": Fact(
        9341, None, "--fit measures a draft model separately", "PR 23485: adds it to --fit-target"
    ),
    "slots_read_wrong_rows": Fact(
        9180, 11292, "lower acceptance with more than one slot", "PR 29019"
    ),
}

# Options and the first build that lists them: a build without a number is at least that new.
OPTION_SINCE: Mapping[str, int] = {"--spec-draft-sampling": 11368, "--kv-unified-per-slot": 10662}

# Architectures whose MTP graph runs, and the first build seen to have it
# (llama.cpp, src/models/*.cpp, LLM_GRAPH_TYPE_DECODER_MTP).
MTP_ARCHITECTURES: Mapping[str, int] = {
    "qwen35": 9180,
    "qwen35moe": 9180,
    "step35": 9493,
    "gemma4": 9553,  # through a gemma4-assistant file
    "cohere2moe": 9670,
    "hy_v3": 10019,
    "glm-dsa": 10218,
    "mimo2": 10218,
    "deepseek4": 10235,
    "deepseek32": 10240,
    "qwen3next": 10240,
    "deepseek2": 10261,
    "nemotron_h_moe": 10362,
    "bailingmoe3": 10499,
    "glm4moe": 10630,
    "qwen4exp": 11334,
}

# Architectures that expose the layer inputs EAGLE-3, DFlash and DSpark read (llama.cpp
# b11434, src/models/*.cpp, t_layer_inp). Another target ends in an assertion.
HOOKED_ARCHITECTURES = frozenset(
    "llama qwen3 qwen3moe qwen35 qwen35moe qwen3next qwen4exp gemma4 gpt-oss minimax-01 minimax-m2 "
    "mimo2 nemotron_h nemotron_h_moe deepseek4 lfm2 lfm2moe bailingmoe3 muse-glimmer hunyuan_vl "
    "nanbeige".split()
)

# Of those, the ones that also expose the output of their last layer, which a drafter requests by
# the id after the last layer's: to EAGLE-3 (t_h_nextn; elsewhere it reads another batch's
# numbers) and to DFlash and DSpark (t_layer_inp[n_layer]; elsewhere an assertion).
LAST_OUTPUT_FOR_EAGLE3 = frozenset(
    "gemma4 gpt-oss qwen35 qwen35moe qwen3next mimo2 nemotron_h nemotron_h_moe deepseek4 "
    "bailingmoe3".split()
)
LAST_OUTPUT_FOR_DFLASH = frozenset("mimo2 nemotron_h nemotron_h_moe deepseek4".split())

# First build whose --spec-type takes the value; for "needs build ≥ bN".
SPEC_TYPE_SINCE: Mapping[str, int] = {
    "draft-simple": 9180,
    "draft-mtp": 9180,
    "draft-eagle3": 9611,
    "draft-dflash": 9837,
    "draft-dspark": 10173,
}

STUBS = ("draft-eagle3",)  # listed before it could run

# ik_llama.cpp's values are in its documentation, not in its help (8337e4cd3, 2026-08).
IK_TYPES = "none draft dflash dspark mtp ngram-cache ngram-simple ngram-map-k ngram-map-k4v ngram-mod suffix"
