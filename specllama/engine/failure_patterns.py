"""Patterns for llama.cpp's log lines, in the order they are tried, and what they mean.

Log lines of b8672 to b11434: observed ones are in tests/data/logs, the rest come from the source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FailurePattern:
    """`{0}` in the message stands for the first group that matched. A message without it gets the
    group appended, if there is one."""

    kind: str
    pattern: re.Pattern[str]
    message: str
    hint: str
    blames_speculation: bool


def _pattern(
    kind: str, pattern: str, message: str, hint: str = "", blames_speculation: bool = False
) -> FailurePattern:
    return FailurePattern(kind, re.compile(pattern, re.I | re.M), message, hint, blames_speculation)


# Lines that are not the cause: debug, info and warning levels, and errors the program recovers
# from, for builds that print no levels (b11434 and its backends).
MINOR = re.compile(r"^(?:[\d.]+ )?[DIW] .*", re.M)
RECOVERED = re.compile(
    r".*(?:pinned memory|prompt cache state|skipping reorder|falling back).*", re.I
)
# The server is up: nothing logged before this line was fatal.
SERVING = re.compile(
    r": model loaded\s*$|listening on (?:http|unix)|all slots are idle|stop processing: n_", re.M
)

# Checked before file faults.
EARLY = (
    _pattern(
        "library",
        r"error while loading shared libraries: ([^:\n]+)|Library not loaded: (\S+)",
        "a required library is missing ({0})",
        "Install it, or use another build, e.g. `--llama-server embedded`.",
    ),
    _pattern(
        "tls",
        r"the server is built without SSL support",
        "this build has no TLS support, but --ssl-* files are set",
        "Drop the --ssl-* options and use a reverse proxy, or use a build with OpenSSL.",
    ),
    _pattern(
        "port",
        r"couldn'?t bind HTTP server socket, (hostname.*)|couldn'?t bind|address already in use|failed to initialize HTTP server",
        "the port is in use or cannot be bound",
        "Choose another --port, or --port 0 for any free one.",
    ),
    _pattern(
        "argument",
        r"error: (invalid argument: \S+|unknown argument: \S+|.*argument has been removed.*|expected value for argument.*)"
        r"|^(?:error: )?(error while handling argument.*)",
        "llama-server rejected its arguments ({0})",
    ),
    _pattern(
        "template",
        r"common_chat_templates_init: error: (.+)\n(?:.*\n)*?.*chat template is not supported",
        "the chat template is not supported ({0})",
        "Use another --chat-template, or omit it.",
    ),
    _pattern(
        "memory",
        r"((?:allocating [\d.]+ MiB on device \d+: )?cudaMalloc failed.*|insufficient memory.*"
        r"|(?:failed|unable) to allocate .*|device memory allocation of size \d+ failed)"
        r"|out of memory|ErrorOutOfDeviceMemory|cannot allocate|bad_alloc",
        "it ran out of memory",
        "Use a smaller context (-c N), a smaller quantisation, or fewer GPU layers (-- -ngl N).",
        blames_speculation=True,
    ),
    _pattern(
        "gpu",
        r"CUDA error: (no kernel image[^\n]*|[^\n]*driver version is insufficient[^\n]*|device kernel image is invalid)",
        "this build does not support the GPU or its driver ({0})",
        "Use a build for this GPU, a newer driver, or `-- -ngl 0`.",
    ),
    _pattern(
        "threads",
        r"std::system_error'\s+what\(\):\s+(Resource temporarily unavailable)",
        "it could not start its threads ({0})",
        "Use fewer slots (-np), or `-- --threads-http N`.",
    ),
    _pattern(
        "lookup",
        r"failed to open (static|dynamic) lookup cache",  # the path runs into the abort's line
        "it could not open the {0} lookup cache",
        "Check the path in -lcs or -lcd, or omit the option.",
        blames_speculation=True,
    ),
    _pattern(
        "lookup",
        r"ngram-cache\.cpp:\d+: (GGML_ASSERT\(.+\)) failed|(Couldn't read (?:static|dynamic) lookup cache)",
        "it could not read the lookup cache ({0})",
        "The file is damaged or not a lookup cache: recreate it, or omit -lcs and -lcd.",
        blames_speculation=True,
    ),
    _pattern(
        "mtp",
        r"failed to create MTP context|MTP requires|model has no MTP|nextn.*(?:missing|not found)",
        "the model has no MTP head that this build supports",
        blames_speculation=True,
    ),
    _pattern(
        "vocabulary",
        r"draft vocabs are not compatible|draft (?:model )?(?:vocab|special tokens).* must match",
        "the draft's vocabulary does not match the target's",
        blames_speculation=True,
    ),
    _pattern(
        "speculation",
        r"failed to initialize speculative decoding context: (.+)",
        "speculative decoding could not start ({0})",
        blames_speculation=True,
    ),
    _pattern(
        "flash-attention",
        r"((?:quantized V cache|V cache quantization) requires flash_?attn[^\n]*)",
        "a setting requires flash attention ({0})",
        "Use `-- -fa on`, or an unquantised V cache.",
    ),
)

# Checked when no file is at fault.
LATE = (
    _pattern(
        "draft",
        r"failed to (?:load|create|open).*draft|draft.*failed to load",
        "the draft model could not be loaded",
        blames_speculation=True,
    ),
    _pattern(
        "assert",
        r"GGML_ASSERT\((.+?)\) failed",
        "llama.cpp failed an assertion ({0})",
        blames_speculation=True,
    ),
    _pattern(
        "exception",
        r"what\(\):\s+(.+)",
        "it failed with an exception ({0})",
        blames_speculation=True,
    ),
)

# Reasons in the log for rejecting a file, and what to do.
_OTHER_PROGRAM = (
    "The file was made for another program or build: use another file of this model, or that build."
)
_AGAIN = "The file is incomplete or damaged: download it again."
_NEWER = "The file is newer than this build: use a newer llama.cpp."
FILE_FAULTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.I), hint)
    for pattern, hint in (
        (r"no such file or directory|permission denied", "Check its path and permissions."),
        (r"unknown model architecture", _NEWER),
        (r"only supports up to version", _NEWER),
        (
            r"unknown (?:pre-)?tokenizer",
            "The file is newer than this build, or made for another program: use a newer llama.cpp or another file.",
        ),
        (
            r"invalid ggml type",
            "Its tensor type belongs to a fork or a newer build: use the program that made it, or another quantisation.",
        ),
        (
            r"within the file bounds|failed to read|read error|corrupted|incomplete|unexpectedly",
            _AGAIN,
        ),
        (r"invalid magic", "It is not a GGUF file: use another."),
        (
            r"wrong shape|not found|missing tensor|wrong number of tensors|wrong type|wrong array length|duplicate",
            _OTHER_PROGRAM,
        ),
        (
            r"general\.type|clip|multimodal",
            "It is a different kind of file: use one made for this purpose.",
        ),
    )
)
