"""llama-server's options as settings of xllamacpp's CommonParams.

Has every option that `engine.command` can emit, and those used most. Names, hints and
defaults are llama.cpp's (common/arg.cpp, b11434; b8929 for options removed since). An option
that is missing here or in the installed library is an error, never ignored.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from specllama.engine.embedded_values import (
    Attribute,
    EmbeddedOption,
    adapters,
    add_spec_types,
    added,
    attribute,
    cache_type,
    comma_list,
    experts_on_cpu,
    first_dense_on_cpu,
    first_experts_on_cpu,
    flash_attention,
    idle_seconds,
    integer,
    key_file,
    key_list,
    known_spec_types,
    layers,
    load_mode,
    number,
    on_off,
    rerank,
    scaled_adapters,
    split_mode,
    split_tensors,
    switch,
    text_file,
    timeout,
)

API_KEY_ENV = "LLAMA_API_KEY"


def apply_environment(params: Any) -> None:
    """The one variable the embedded engine reads: the API keys, kept out of `ps`."""
    params.api_keys = key_list(os.environ.get(API_KEY_ENV, ""))


O = EmbeddedOption  # noqa: E741 - a column of a table
OPTIONS: tuple[EmbeddedOption, ...] = (
    O(("-m", "--model"), "FNAME", "model file", attribute("model.path", str)),
    O(("-a", "--alias"), "STRING", "model names in the API", attribute("model_alias", comma_list)),
    O(("-c", "--ctx-size"), "N", "context size, 0 = from the model (default: 0)", attribute("n_ctx", integer)),
    O(("-n", "--predict", "--n-predict"), "N", "tokens to generate per request (default: -1)", attribute("n_predict", integer)),
    O(("-b", "--batch-size"), "N", "logical batch size (default: 2048)", attribute("n_batch", integer)),
    O(("-ub", "--ubatch-size"), "N", "physical batch size (default: 512)", attribute("n_ubatch", integer)),
    O(("-np", "--parallel"), "N", "slots (default: -1)", attribute("n_parallel", integer)),
    O(("-kvu", "--kv-unified"), "", "one KV buffer for all slots", switch("kv_unified"), ("-no-kvu", "--no-kv-unified")),
    O(("-t", "--threads"), "N", "threads (default: -1)", attribute("cpuparams.n_threads", integer)),
    O(("-tb", "--threads-batch"), "N", "threads for prompts", attribute("cpuparams_batch.n_threads", integer)),
    O(("-ngl", "--gpu-layers", "--n-gpu-layers"), "N", "layers on the GPU (default: auto)", attribute("n_gpu_layers", layers)),
    O(("-fa", "--flash-attn"), "[on|off|auto]", "flash attention (default: auto)", attribute("flash_attn_type", flash_attention)),
    O(("-ctk", "--cache-type-k"), "TYPE", "K cache type (default: f16)", attribute("cache_type_k", cache_type)),
    O(("-ctv", "--cache-type-v"), "TYPE", "V cache type (default: f16)", attribute("cache_type_v", cache_type)),
    O(("-lm", "--load-mode"), "MODE", "how to load the weights (default: auto)", attribute("load_mode", load_mode)),
    O(("-kvo", "--kv-offload"), "", "KV cache on the GPU", switch("no_kv_offload", on=False), ("-nkvo", "--no-kv-offload")),
    O(("-ot", "--override-tensor"), "<tensor name pattern>=<buffer type>,...", "device for matching tensors", added("tensor_buft_overrides", str)),
    O(("-cmoe", "--cpu-moe"), "", "experts on the CPU", added("tensor_buft_overrides", experts_on_cpu)),
    O(("-ncmoe", "--n-cpu-moe"), "N", "experts of the first N layers on the CPU", added("tensor_buft_overrides", first_experts_on_cpu)),
    O(("-ncffn", "--n-cpu-ffn"), "N", "dense FFN of the first N layers on the CPU", added("tensor_buft_overrides", first_dense_on_cpu)),
    O(("-sm", "--split-mode"), "{none,layer,row,tensor}", "how to split across GPUs (default: layer)", attribute("split_mode", split_mode)),
    O(("-ts", "--tensor-split"), "N0,N1,N2,...", "share of each GPU", split_tensors),
    O(("-mg", "--main-gpu"), "INDEX", "main GPU (default: 0)", attribute("main_gpu", integer)),
    O(("--mmap",), "", "memory-map the model", switch("use_mmap"), ("--no-mmap",)),
    O(("--mlock",), "", "lock the model in RAM", switch("use_mlock")),
    O(("--lora",), "FNAME", "LoRA adapters, comma-separated", added("lora_adapters", adapters)),
    O(("--lora-scaled",), "FNAME:SCALE,...", "LoRA adapters with scales", added("lora_adapters", scaled_adapters)),
    O(("--lora-init-without-apply",), "", "load LoRA adapters without applying them", switch("lora_init_without_apply")),
    O(("--repack",), "", "repack weights for this CPU", switch("no_extra_bufts", on=False), ("-nr", "--no-repack")),
    O(("-fit", "--fit"), "[on|off]", "shrink to fit memory (default: on)", attribute("fit_params", on_off)),
    O(("-fitc", "--fit-ctx"), "N", "minimum context of --fit (default: 4096)", attribute("fit_params_min_ctx", integer)),
    O(("--warmup",), "", "warm up with an empty run", switch("warmup"), ("--no-warmup",)),
    O(("-lv", "--verbosity", "--log-verbosity"), "N", "log level (default: 3)", attribute("verbosity", integer)),
    O(("--swa-full",), "", "full-size SWA cache", switch("swa_full")),
    O(("--cache-ram", "-cram"), "N", "prompt cache in MiB (default: 8192)", attribute("cache_ram_mib", integer)),
    O(("-mm", "--mmproj"), "FILE", "multimodal projector", attribute("mmproj.path", str)),
    O(("--host",), "HOST", "address (default: 127.0.0.1)", attribute("hostnames", comma_list)),
    O(("--host",), "HOST", "address (default: 127.0.0.1)", attribute("hostname", str)),
    O(("--port",), "PORT", "port (default: 8080)", attribute("port", integer)),
    O(("--api-key",), "KEY", "key that clients must send (env: LLAMA_API_KEY)", added("api_keys", key_list)),
    O(("--api-key-file",), "FNAME", "file with API keys", added("api_keys", key_file)),
    O(("--metrics",), "", "serve /metrics", switch("endpoint_metrics")),
    O(("--slots",), "", "serve /slots", switch("endpoint_slots"), ("--no-slots",)),
    O(("--props",), "", "allow changes with POST /props", switch("endpoint_props")),
    O(("--api-prefix",), "PREFIX", "path prefix of all endpoints", attribute("api_prefix", str)),
    O(("--ssl-key-file",), "FNAME", "TLS private key", attribute("ssl_file_key", str)),
    O(("--ssl-cert-file",), "FNAME", "TLS certificate", attribute("ssl_file_cert", str)),
    O(("--embedding", "--embeddings"), "", "embeddings only", switch("embedding")),
    O(("--rerank", "--reranking"), "", "serve /rerank", rerank),
    O(("--sleep-idle-seconds",), "SECONDS", "sleep after this long without requests (default: -1)", attribute("sleep_idle_seconds", idle_seconds)),
    O(("-to", "--timeout"), "N", "read and write timeout in seconds (default: 3600)", timeout),
    O(("--threads-http",), "N", "HTTP threads (default: -1)", attribute("n_threads_http", integer)),
    O(("--cache-prompt",), "", "cache prompts", switch("cache_prompt"), ("--no-cache-prompt",)),
    O(("--cache-reuse",), "N", "minimum chunk to reuse (default: 0)", attribute("n_cache_reuse", integer)),
    O(("--context-shift",), "", "drop old tokens when the context is full", switch("ctx_shift"), ("--no-context-shift",)),
    O(("--jinja",), "", "jinja chat templates", switch("use_jinja"), ("--no-jinja",)),
    O(("--chat-template",), "TEMPLATE", "chat template", attribute("chat_template", str)),
    O(("--chat-template-file",), "FILE", "chat template from a file", attribute("chat_template", text_file)),
    O(("-s", "--seed"), "SEED", "RNG seed (default: -1)", attribute("sampling.seed", lambda v: integer(v) % 2**32)),
    O(("--temp", "--temperature"), "N", "temperature (default: 0.8)", attribute("sampling.temp", number)),
    O(("--top-k",), "N", "top-k (default: 40)", attribute("sampling.top_k", integer)),
    O(("--top-p",), "N", "top-p (default: 0.95)", attribute("sampling.top_p", number)),
    O(("--min-p",), "N", "min-p (default: 0.05)", attribute("sampling.min_p", number)),
    O(("--spec-type",), "TYPES", "speculative decoding methods (default: none)", add_spec_types),
    O(("-md", "--model-draft", "--spec-draft-model"), "FNAME", "draft model", attribute("speculative.draft.mparams.path speculative.mparams_dft.path", str)),
    O(("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"), "N", "draft layers on the GPU (default: auto)", attribute("speculative.draft.n_gpu_layers speculative.n_gpu_layers", layers)),
    O(("-devd", "--device-draft", "--spec-draft-device"), "DEVICE", "draft devices", attribute("speculative.draft.devices speculative.devices", str)),
    O(("-otd", "--override-tensor-draft", "--spec-draft-override-tensor"), "<tensor name pattern>=<buffer type>,...", "device for matching draft tensors", added("speculative.draft.tensor_buft_overrides speculative.tensor_buft_overrides", str)),
    O(("-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe"), "", "draft experts on the CPU", added("speculative.draft.tensor_buft_overrides speculative.tensor_buft_overrides", experts_on_cpu)),
    O(("-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe", "--spec-draft-ncmoe"), "N", "draft experts of the first N layers on the CPU", added("speculative.draft.tensor_buft_overrides speculative.tensor_buft_overrides", first_experts_on_cpu)),
    O(("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"), "TYPE", "draft K cache type (default: f16)", attribute("speculative.draft.cache_type_k speculative.cache_type_k", cache_type)),
    O(("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"), "TYPE", "draft V cache type (default: f16)", attribute("speculative.draft.cache_type_v speculative.cache_type_v", cache_type)),
    O(("-td", "--threads-draft", "--spec-draft-threads"), "N", "draft threads", attribute("speculative.draft.cpuparams.n_threads speculative.cpuparams.n_threads", integer)),
    O(("-tbd", "--threads-batch-draft", "--spec-draft-threads-batch"), "N", "draft threads for prompts", attribute("speculative.draft.cpuparams_batch.n_threads speculative.cpuparams_batch.n_threads", integer)),
    O(("--spec-draft-n-max",), "N", "draft length (default: 3)", attribute("speculative.draft.n_max", integer)),
    O(("--spec-draft-n-min",), "N", "minimum draft length (default: 0)", attribute("speculative.draft.n_min", integer)),
    O(("--spec-draft-p-min", "--draft-p-min"), "P", "minimum draft probability (default: 0.00)", attribute("speculative.draft.p_min", number)),
    O(("--draft", "--draft-n", "--draft-max"), "N", "draft length (default: 16)", attribute("speculative.n_max", integer)),
    O(("--draft-min", "--draft-n-min"), "N", "minimum draft length (default: 0)", attribute("speculative.n_min", integer)),
    O(("--draft-p-min",), "P", "minimum draft probability (default: 0.75)", attribute("speculative.p_min", number)),
    O(("--spec-ngram-size-n",), "N", "n-gram size (default: 12)", attribute("speculative.ngram_size_n", integer)),
    O(("--spec-ngram-size-m",), "N", "n-gram draft size (default: 48)", attribute("speculative.ngram_size_m", integer)),
    O(("--spec-ngram-min-hits",), "N", "n-gram minimum hits (default: 1)", attribute("speculative.ngram_min_hits", integer)),
    O(("--spec-ngram-mod-n-match",), "N", "ngram-mod match length (default: 24)", attribute("speculative.ngram_mod.n_match", integer)),
    O(("--spec-ngram-mod-n-min",), "N", "ngram-mod minimum draft (default: 48)", attribute("speculative.ngram_mod.n_min", integer)),
    O(("--spec-ngram-mod-n-max",), "N", "ngram-mod maximum draft (default: 64)", attribute("speculative.ngram_mod.n_max", integer)),
    *(
        O((f"--spec-ngram-{kind}-{flag}",), "N", f"{kind} {flag} (default: {default})", attribute(f"speculative.ngram_{kind.replace('-', '_')}.{attr}", integer))
        for kind in ("simple", "map-k", "map-k4v")
        for flag, attr, default in (("size-n", "size_n", 12), ("size-m", "size_m", 48), ("min-hits", "min_hits", 1))
    ),
    O(("-lcs", "--lookup-cache-static"), "FNAME", "static ngram-cache file", attribute("speculative.ngram_cache.lookup_cache_static speculative.lookup_cache_static", str)),
    O(("-lcd", "--lookup-cache-dynamic"), "FNAME", "dynamic ngram-cache file", attribute("speculative.ngram_cache.lookup_cache_dynamic speculative.lookup_cache_dynamic", str)),
)  # fmt: skip


# Common llama-server options that the library has no setting for.
UNSUPPORTED = (
    "-dev, --device, --rpc, --override-kv, --control-vector, --fit-target, --numa, -hf, --hf-repo, "
    "--log-file, --models-dir"
)


def supported_options(params: Any) -> tuple[EmbeddedOption, ...]:
    """The options that the installed library supports, by a fresh CommonParams."""
    known = (
        o
        for o in OPTIONS
        if not isinstance(o.apply, Attribute) or o.apply.place(params) is not None
    )
    return tuple(
        replace(o, hint=known_spec_types()) if "--spec-type" in o.names else o for o in known
    )
