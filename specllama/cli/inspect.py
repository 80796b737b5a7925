"""`specllama inspect FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specllama.cli.options import AsJson
from specllama.cli.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from specllama.cli.render import Printer
    from specllama.drafts.checkpoints import Checkpoint
    from specllama.gguf import ModelInfo
    from specllama.gguf.header import Tensor


def register(app: typer.Typer) -> None:
    app.command("inspect")(inspect)


def inspect(
    ctx: typer.Context,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="GGUF file, or OWNER/REPO:FILE on the Hugging Face Hub."
        ),
    ],
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a GGUF file contains and which drafts fit it."""
    from specllama.cli.options import no_passthrough
    from specllama.cli.render import Printer
    from specllama.drafts.checkpoints import checkpoint
    from specllama.drafts.hub import open_model
    from specllama.gguf.cache import as_json as model_json
    from specllama.gguf.oddities import oddities

    no_passthrough(ctx.obj or (), "inspect")
    printer = Printer()
    if (found := checkpoint(Path(file))) is not None:
        _show_checkpoint(printer, found, as_json)
        return
    with printer.busy(f"reading {file} …"):
        info, headers = open_model(file)
    rows = [t for h in headers for t in h.tensors] if tensors else []
    if as_json:
        extra = {
            "serve": serve_line(info),
            "notes": list(oddities(info)),
            "drafts": list(drafts(info)),
        }
        data = {**model_json(info), **extra}
        if info.vocabulary:
            data["vocabulary"].pop("table")
        if tensors:
            data["tensor_table"] = [
                {"name": t.name, "shape": t.shape, "type": t.kind, "bytes": t.nbytes} for t in rows
            ]
        printer.json(data)
        return
    for line in lines(info):
        printer.say(line)
    if rows:
        printer.table(_tensor_table(rows))


def _tensor_table(tensors: Sequence[Tensor]) -> Table:
    from rich.table import Table

    out = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("tensor", "type", "shape", "bytes"):
        out.add_column(name, justify="right" if name in ("shape", "bytes") else "left")
    for t in tensors:
        out.add_row(t.name, t.kind, " × ".join(map(str, t.shape)), f"{t.nbytes or 0:,}")
    return out


def _show_checkpoint(printer: Printer, c: Checkpoint, as_json: bool) -> None:
    """A folder not converted to GGUF yet, or one that cannot be."""
    if as_json:
        keys = ("kind", "layers", "hidden_size", "what", "advice")
        printer.json({"path": str(c.folder), **{k: getattr(c, k) for k in keys}})
        return
    printer.say(f"file     {c.folder}")
    printer.say(f"kind     {c.kind}: {c.what}")
    if c.layers:
        printer.say(f"shape    {plural(c.layers, 'layer')}, hidden size {c.hidden_size}")
    printer.say(f"serve    no: {c.advice}")


def lines(m: ModelInfo) -> Iterator[str]:
    """The file on one screen."""
    from specllama.cli.units import count, mib
    from specllama.gguf.oddities import oddities

    parts = f" in {len(m.shards)} parts" if len(m.shards) > 1 else ""
    yield f"file     {m.path} ({mib(m.file_bytes)}{parts})"
    yield f"kind     {m.kind}, architecture {m.architecture or 'unknown'}"
    if any((m.names.name, m.names.size_label, m.names.finetune)):
        base = f", based on {m.names.base_models[0]}" if m.names.base_models else ""
        labels = ", ".join(filter(None, (m.names.size_label, m.names.finetune)))
        yield f"name     {m.names.name}{f' ({labels})' if labels else ''}{base}"
    if m.tensors:
        quantization = m.quantization
        if m.file_type and m.file_type != m.quantization:
            quantization = f"{m.file_type} (mostly {m.quantization})"
        yield (
            f"weights  {count(m.parameters)} parameters, {quantization}, "
            f"{m.bits_per_weight:.2f} bits each, {m.tensors} tensors; "
            f"{mib(m.active_bytes)} read per token"
        )
    if m.layers:
        yield f"shape    {_shape(m)}"
    if v := m.vocabulary:
        pre = f"/{v.pre}" if v.pre else ""
        yield (
            f"tokens   {v.type}{pre}, {v.n_tokens:,}; bos {v.bos_id}{_added(v.add_bos)}, "
            f"eos {v.eos_id}{_added(v.add_eos)}"
        )
    yield f"serve    {serve_line(m)}"
    for fault in m.faults[1:]:
        yield f"         also {fault.detail} ({fault.rule})"
    for line in drafts(m):
        yield f"drafts   {line}"
    for note in oddities(m):
        yield f"note     {note}"


def _shape(m: ModelInfo) -> str:
    heads, kv = max(m.heads, default=0), max(m.kv_heads, default=0)
    out = f"{plural(m.layers, 'layer')}, hidden size {m.embedding_length}"
    if heads:
        out += f", {plural(heads, 'head')} ({kv} KV) of {m.key_length}"
    if m.experts:
        out += f", {m.experts_used} of {m.experts} experts"
    if m.mla_rank:
        out += f", MLA rank {m.mla_rank}"
    if m.sliding_window:
        out += f", sliding window {m.sliding_window}"
    if m.memory != "attention":
        out += f", {m.memory}"
    return out + (f"; trained context {m.context_length:,}" if m.context_length else "")


def _added(added: bool) -> str:
    return " (added)" if added else ""


def serve_line(m: ModelInfo) -> str:
    """Whether the file can be served; with a fault never a plain yes."""
    from specllama.gguf.faults import ALWAYS, KNOWN_BUILDS, MAINLINE

    if m.faults:
        first = m.faults[0]
        sure = {ALWAYS: "no", MAINLINE: "not by llama.cpp", KNOWN_BUILDS: "unknown"}[first.by]
        return f"{sure}: {first.detail} ({first.rule})"
    if m.kind == "model":
        return "yes"
    if m.kind == "embedding":
        return "for embeddings only, which speculation does not apply to"
    return f"no: this {m.kind} file belongs to another model"


def drafts(m: ModelInfo) -> Iterator[str]:
    """What can draft for it, or what it drafts for."""
    from specllama.drafts.checkpoints import NO_P_EAGLE, P_EAGLE, P_EAGLE_IN_VLLM
    from specllama.drafts.compat import METHOD_OF_KIND, own_head_verdict
    from specllama.drafts.families import family_of
    from specllama.engine.build_facts import HOOKED_ARCHITECTURES
    from specllama.gguf.faults import ALWAYS

    if m.kind == P_EAGLE:
        yield NO_P_EAGLE
        yield P_EAGLE_IN_VLLM
    if m.kind != "model":
        if m.kind in METHOD_OF_KIND and not m.faults:
            yield f"it is a drafter itself, for {METHOD_OF_KIND[m.kind]}"
        return
    if any(f.by == ALWAYS for f in m.faults):
        return
    own = own_head_verdict(m)
    if own.ok:
        heads = f"{m.mtp_heads} heads" if m.mtp_heads > 1 else "its head"
        yield f"itself with draft-mtp ({heads}, {m.mtp_bits:.1f} bits per weight)"
    elif own.rule == "MTP graph":
        yield f"not its own head: {own.detail}"
    if m.vocabulary:
        n = m.vocabulary.n_tokens
        yield f"a smaller model with the same {n:,} tokens (±128), with draft-simple"
    if m.architecture in HOOKED_ARCHITECTURES:
        yield f"EAGLE-3, DFlash and DSpark drafters trained for hidden size {m.embedding_length}"
    if family := family_of(m):
        known = [f"{s.name}{s.where} with {s.method}" for s in family.suggestions]
        if known:
            yield f"known for {family.name}: {'; '.join(known)}"
        if family.note:
            yield f"{family.name}: {family.note}"
    yield "its own text, with the n-gram methods"
