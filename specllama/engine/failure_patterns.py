"""What llama.cpp's own log lines mean: patterns, in the order in which they are tried.

Lines as b8672 to b11434 print them (seen: tests/data/logs; else read in its source).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FailurePattern:
    """`{0}` in the message is the pattern's first group that matched; a message without it has
    that group added where there is one."""

    kind: str
    pattern: re.Pattern[str]
    message: str
    hint: str
    blames_speculation: bool


def _cause(
    kind: str, pattern: str, message: str, hint: str = "", blames_speculation: bool = False
) -> FailurePattern:
    return FailurePattern(kind, re.compile(pattern, re.I | re.M), message, hint, blames_speculation)


# Lines that name no cause: those of the levels debug, information and warning, and what the program
# goes on after, for builds that print no levels (read in b11434, with its backends).
MINOR = re.compile(r"^(?:[\d.]+ )?[DIW] .*", re.M)
RECOVERED = re.compile(
    r".*(?:pinned memory|prompt cache state|skipping reorder|falling back).*", re.I
)
# It serves: whatever stands before has not ended it.
SERVING = re.compile(
    r": model loaded\s*$|listening on (?:http|unix)|all slots are idle|stop processing: n_", re.M
)

# Before faults of files are looked for.
EARLY = (
    _cause(
        "library",
        r"error while loading shared libraries: ([^:\n]+)|Library not loaded: (\S+)",
        "a library that it needs is missing ({0})",
        "Install it or use another build, e.g. `--llama-server embedded`.",
    ),
    _cause(
        "tls",
        r"the server is built without SSL support",
        "this build has no TLS, and --ssl-* files are given",
        "Leave them out and put a proxy in front, or use a build with OpenSSL.",
    ),
    _cause(
        "port",
        r"couldn'?t bind HTTP server socket, (hostname.*)|couldn'?t bind|address already in use|failed to initialize HTTP server",
        "the port is taken or cannot be bound",
        "Give another --port, or --port 0 for a free one.",
    ),
    _cause(
        "argument",
        r"error: (invalid argument: \S+|unknown argument: \S+|.*argument has been removed.*|expected value for argument.*)"
        r"|^(?:error: )?(error while handling argument.*)",
        "llama-server does not take its arguments ({0})",
    ),
    _cause(
        "template",
        r"common_chat_templates_init: error: (.+)\n(?:.*\n)*?.*chat template is not supported",
        "the chat template cannot be used ({0})",
        "Give another --chat-template, or leave it out.",
    ),
    _cause(
        "memory",
        r"((?:allocating [\d.]+ MiB on device \d+: )?cudaMalloc failed.*|insufficient memory.*"
        r"|(?:failed|unable) to allocate .*|device memory allocation of size \d+ failed)"
        r"|out of memory|ErrorOutOfDeviceMemory|cannot allocate|bad_alloc",
        "it ran out of memory",
        "Use a smaller context (-c N), a smaller quantisation, or fewer GPU layers (-- -ngl N).",
        blames_speculation=True,
    ),
    _cause(
        "gpu",
        r"CUDA error: (no kernel image[^\n]*|[^\n]*driver version is insufficient[^\n]*|device kernel image is invalid)",
        "this build does not fit the GPU or its driver ({0})",
        "Use a build for this GPU, a newer driver, or `-- -ngl 0`.",
    ),
    _cause(
        "threads",
        r"std::system_error'\s+what\(\):\s+(Resource temporarily unavailable)",
        "it could not start its threads ({0})",
        "Use fewer slots (-np), or `-- --threads-http N`.",
    ),
    _cause(
        "lookup",
        r"failed to open (static|dynamic) lookup cache",  # the path runs into the abort's line
        "it failed to open the {0} lookup cache",
        "Check the path given with -lcs or -lcd, or leave it out.",
        blames_speculation=True,
    ),
    _cause(
        "lookup",
        r"ngram-cache\.cpp:\d+: (GGML_ASSERT\(.+\)) failed|(Couldn't read (?:static|dynamic) lookup cache)",
        "the lookup cache cannot be read ({0})",
        "It is damaged or another file: make it again, or leave -lcs and -lcd out.",
        blames_speculation=True,
    ),
    _cause(
        "mtp",
        r"failed to create MTP context|MTP requires|model has no MTP|nextn.*(?:missing|not found)",
        "the file has no MTP head this build can run",
        blames_speculation=True,
    ),
    _cause(
        "vocabulary",
        r"draft vocabs are not compatible|draft (?:model )?(?:vocab|special tokens).* must match",
        "the draft's vocabulary does not match the target's",
        blames_speculation=True,
    ),
    _cause(
        "speculation",
        r"failed to initialize speculative decoding context: (.+)",
        "it cannot speculate so ({0})",
        blames_speculation=True,
    ),
    _cause(
        "flash-attention",
        r"((?:quantized V cache|V cache quantization) requires flash_?attn[^\n]*)",
        "a setting asks for flash attention ({0})",
        "Use `-- -fa on`, or an unquantised V cache.",
    ),
)

# When no file is at fault.
LATE = (
    _cause(
        "draft",
        r"failed to (?:load|create|open).*draft|draft.*failed to load",
        "the draft could not be loaded",
        blames_speculation=True,
    ),
    _cause(
        "assert",
        r"GGML_ASSERT\((.+?)\) failed",
        "llama.cpp stopped at its own check {0!r}",
        blames_speculation=True,
    ),
    _cause(
        "exception",
        r"what\(\):\s+(.+)",
        "it stopped at an error of its own ({0})",
        blames_speculation=True,
    ),
)

# What is wrong with a file, as the log has it, and what to do about it.
_OTHER_PROGRAM = "It was made for another program or build: take another file of this model, or the build it was made for."
_AGAIN = "It is incomplete or damaged: download it again."
_NEWER = "It is newer than the build: use a newer llama.cpp."
FILE_FAULTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.I), hint)
    for pattern, hint in (
        (r"no such file or directory|permission denied", "Check its path and its rights."),
        (r"unknown model architecture", _NEWER),
        (r"only supports up to version", _NEWER),
        (
            r"unknown (?:pre-)?tokenizer",
            "It is newer than the build, or made for another program: use a newer llama.cpp, or another file.",
        ),
        (
            r"invalid ggml type",
            "Its type belongs to a fork, or is newer than the build: use the program that made it, or another quantisation.",
        ),
        (
            r"within the file bounds|failed to read|read error|corrupted|incomplete|unexpectedly",
            _AGAIN,
        ),
        (r"invalid magic", "It is not a GGUF file: give another."),
        (
            r"wrong shape|not found|missing tensor|wrong number of tensors|wrong type|wrong array length|duplicate",
            _OTHER_PROGRAM,
        ),
        (
            r"general\.type|clip|multimodal",
            "It is a file of another kind: give one that is made for this.",
        ),
    )
)
