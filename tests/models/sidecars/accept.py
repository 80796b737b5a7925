"""How often a drafter's i-th token is accepted by the real server, greedy, on held-out text.

    python -m tests.models.sidecars.accept LLAMA_SERVER eagle3.gguf draft-eagle3 --longest 4

The measure of this folder's tables: 12 prompts of 120 tokens, each continued by 64; the
share of verify steps in which the first i drafted tokens were accepted (the server's own
counters, /metrics).
"""

from __future__ import annotations

import argparse
import re
import urllib.request
from pathlib import Path

from tests.models.sidecars.target import TARGET, held_prompts, post, running

COUNTER = re.compile(
    r"^llamacpp:spec_decode_num_(drafts|accepted_tokens_per_pos)_total(\{\S*?\})? (\S+)$", re.M
)


def shares(address: str) -> list[float]:
    """Accepted at position 1, 2, … per verify step, since the server's start."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    steps, accepted = 0.0, []
    for name, _, value in COUNTER.findall(text):
        if name == "drafts":
            steps = float(value)
        else:
            accepted.append(float(value))
    return [a / steps for a in accepted]


def measure(
    binary: str, draft: Path, method: str, longest: int, kind: str, work: Path, target: Path
) -> list[float]:
    arguments = ["-md", str(draft)] if draft != target else []
    arguments += ["--spec-type", method, "--spec-draft-n-max", str(longest), "--metrics"]
    with running(binary, *arguments, model=target) as address:
        for prompt in held_prompts(work, kind, 12):
            post(address, prompt, 64)
        return shares(address)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ap.add_argument("server")
    ap.add_argument("draft", type=Path)
    ap.add_argument("method")
    ap.add_argument("--longest", type=int, default=4)
    ap.add_argument("--target", type=Path, default=TARGET)
    ap.add_argument("--work", type=Path, default=Path("build/sidecars"))
    args = ap.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for kind in ("code", "prose"):
        found = measure(
            args.server, args.draft, args.method, args.longest, kind, args.work, args.target
        )
        print(kind, " | ".join(f"{a:.2f}" for a in found))


if __name__ == "__main__":
    main()
