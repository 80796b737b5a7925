"""From the user's arguments to a Plan: inspect the files, find the engine, choose."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from specllama import workloads
from specllama.drafts import checkpoints
from specllama.drafts.compat import METHOD_OF_KIND, longest_draft
from specllama.drafts.discover import DiscoveredDrafts
from specllama.drafts.ollama import model_name
from specllama.engine.build_facts import SPEC_TYPE_SINCE
from specllama.engine.capabilities import NO_OPTIONS, Capabilities, Tristate, read_capabilities
from specllama.engine.embedded_options import API_KEY_ENV
from specllama.engine.errors import EngineError
from specllama.engine.keys import usable
from specllama.engine.launch_options import LaunchOptions, read_launch_options
from specllama.engine.loading import check_loads
from specllama.engine.locate import Engine, embedded_build, locate
from specllama.engine.settings import Settings
from specllama.errors import UsageError
from specllama.gguf import ModelInfo, file_of_kind, read_model
from specllama.memory.devices import find_machine, parse_sizes
from specllama.memory.errors import MemoryInputError
from specllama.memory.oracle import find_oracle
from specllama.memory.use import CACHE_TYPES
from specllama.planning.budget import CONTEXT, SPEED, Budget, budget
from specllama.planning.choose import Choice, MethodRequest, choose, parse_methods
from specllama.planning.memory_choice import apply_option
from specllama.planning.memory_inputs import context_size
from specllama.planning.passthrough import with_ngram_sizes, with_passthrough_options
from specllama.planning.plan import Plan, make_plan
from specllama.planning.prompt_cache import limit_prompt_cache
from specllama.planning.refusals import check_launch, suitable_choice
from specllama.planning.spec_options import SpeculationOptions


def prepare(
    settings: Settings,
    spec_options: SpeculationOptions,
    user_args: Sequence[str] = (),
    llama_server: str | None = None,
    check_port: bool = True,
    target: ModelInfo | None = None,
    more: DiscoveredDrafts | None = None,
) -> Plan:
    """The whole decision for `settings.model`, or for `target`, whose headers were read elsewhere;
    `more`: drafts in addition to those found here. Raises SpecllamaError for bad input and if
    no engine is usable; a draft that does not fit is a reason in the plan, not an error."""
    workload = workloads.load_workload(spec_options.workload)
    _check(spec_options)
    target = target or target_info(settings.model)
    engine, capabilities = usable_engine(llama_server)
    user = read_launch_options(user_args, capabilities, os.environ)
    doubtful = check_loads(target, capabilities, bool(user.values("--override-kv")))
    check_launch(settings, user)
    spec_options = with_passthrough_options(spec_options, user)
    methods = parse_methods(spec_options.method) if spec_options.method else ()
    if spec_options.draft:
        checkpoints.reject_checkpoint(spec_options.draft)
    draft = _with_ollama_name(read_model(spec_options.draft)) if spec_options.draft else None
    request = MethodRequest(
        target,
        workload,
        draft,
        methods,
        spec_options.n_max,
        spec_options.p_min,
        spec_options.draft_layers,
        more,
    )
    choice = choose(request, capabilities)
    choice = replace(choice, speculation=with_ngram_sizes(choice.speculation, user))
    choice = suitable_choice(
        _with_cache_type(choice, spec_options.draft_cache), user, settings.parallel
    )
    memory, choice, settings = _memory(
        target, choice, settings, spec_options, user, engine, capabilities
    )
    notes = doubtful + tuple(_unused_notes(spec_options, choice))
    notes += tuple(_newer_notes(choice, engine, draft, methods))
    notes += tuple(_length_notes(target, spec_options, choice))
    notes += tuple(_address_notes(settings, user))
    notes += tuple(_slot_notes(settings.parallel, choice, capabilities))
    notes += tuple(_context_notes(target, settings, user))
    choice = replace(choice, notes=choice.notes + notes)
    settings = replace(
        settings,
        model=target.path,
        api_key=settings.api_key or usable(os.environ.get(API_KEY_ENV, ""), API_KEY_ENV) or None,
    )
    return make_plan(
        target, workload, engine, capabilities, choice, settings, user, check_port, memory
    )


def _with_ollama_name(model: ModelInfo) -> ModelInfo:
    """The model with the name that Ollama gave it, if it is one of its blobs."""
    return replace(model, called=model_name(model.path))


def _newer_notes(
    choice: Choice, engine: Engine, draft: ModelInfo | None, methods: tuple[str, ...]
) -> Iterator[str]:
    """Which installed engine supports what the user set, if this build does not."""
    if engine.embedded or not any(r.rule == "engine" for r in choice.rejected):
        return
    named = methods or ((METHOD_OF_KIND.get(draft.kind, ""),) if draft is not None else ())
    needed = max((SPEC_TYPE_SINCE.get(m, 0) for m in named), default=0)
    embedded = embedded_build()
    if needed and embedded is not None and embedded >= needed:
        yield f"the embedded engine (b{embedded}) supports {','.join(named)}: use --llama-server embedded"


def _check(spec_options: SpeculationOptions) -> None:
    """Raises UsageError for values that are invalid whatever is chosen."""
    if spec_options.prefer not in (None, SPEED, CONTEXT):
        raise UsageError(f"--prefer {spec_options.prefer}: must be {SPEED} or {CONTEXT}")
    if spec_options.draft_cache is not None and spec_options.draft_cache not in CACHE_TYPES:
        raise UsageError(
            f"--draft-cache {spec_options.draft_cache}: unknown cache type",
            f"Types: {', '.join(CACHE_TYPES)}.",
        )
    layers = spec_options.draft_layers
    if layers is not None and not re.fullmatch(r"[0-9]{1,4}|auto|all", layers):
        raise UsageError(f"--draft-layers {layers}: must be a number of layers, auto or all")


def _memory(
    target: ModelInfo,
    choice: Choice,
    settings: Settings,
    spec_options: SpeculationOptions,
    user: LaunchOptions,
    engine: Engine,
    caps: Capabilities,
) -> tuple[Budget | None, Choice, Settings]:
    """The budget, and the choice and settings that fit it. A model with an inconsistent header is
    served anyway, its memory unknown: llama-server reports whether it can load it."""
    vram = parse_sizes(spec_options.vram) if spec_options.vram is not None else ()
    for model in (target, choice.draft):
        if model is not None and model.layout.problem and not spec_options.exact:
            note = f"memory unknown: the header of {model.path.name} is inconsistent ({model.layout.problem})"
            return None, replace(choice, notes=(*choice.notes, note)), settings
    devices = find_machine(engine, vram, user.values("--rpc"))
    if devices.note and spec_options.exact:
        raise MemoryInputError(f"{engine.label} does not report its devices: {devices.note}")
    if devices.note:  # unknown is not "no GPU": nothing is reduced because of it
        note = f"memory not checked: {devices.note}"
        return None, replace(choice, notes=(*choice.notes, note)), settings
    tool = find_oracle(engine)
    found = budget(target, choice, settings, user, caps, devices, spec_options.prefer, tool)
    choice, settings = apply_option(found, found.chosen, choice, settings, user, caps)
    cache, settings = limit_prompt_cache(found, settings, user, caps)
    found = replace(found, prompt_cache=cache)
    if cache is not None and cache.message:
        choice = replace(choice, notes=(*choice.notes, cache.message))
    if devices.unreached:
        note = (
            f"no RPC server responds at {', '.join(devices.unreached)}; llama.cpp runs without it"
        )
        choice = replace(choice, notes=(*choice.notes, note))
    return found, choice, settings


def _with_cache_type(choice: Choice, kind: str | None) -> Choice:
    """The choice with the user's cache type for the draft."""
    if kind is None or choice.speculation is None or not choice.speculation.uses_draft:
        return choice
    return replace(choice, speculation=replace(choice.speculation, cache_type=kind))


def _context_notes(target: ModelInfo, settings: Settings, user: LaunchOptions) -> Iterator[str]:
    """A context beyond the model's training."""
    context, trained = context_size(target, settings, user), target.context_length
    if trained and context // settings.parallel > trained:
        yield f"the context is {context:,} tokens, but the model was trained on {trained:,}"


def _unused_notes(spec_options: SpeculationOptions, choice: Choice) -> Iterator[str]:
    """Options about a draft when none is used."""
    spec = choice.speculation
    if spec is not None and spec.uses_draft:
        return
    given = {
        "--n-max": spec_options.n_max,
        "--p-min": spec_options.p_min,
        "--draft-layers": spec_options.draft_layers,
        "--draft-cache": spec_options.draft_cache,
    }
    names = [name for name, value in given.items() if value is not None]
    if names:
        what = f"{','.join(spec.methods)} uses its own sizes" if spec else "nothing is drafted"
        yield f"{', '.join(names)}: no effect, {what}"


def _length_notes(
    target: ModelInfo, spec_options: SpeculationOptions, choice: Choice
) -> Iterator[str]:
    """A draft length beyond the file's limit: llama.cpp reduces it."""
    spec = choice.speculation
    drafter = choice.draft or target
    for method in spec.methods if spec is not None else ():
        limit = longest_draft(method, drafter)
        if limit is not None and spec_options.n_max is not None and spec_options.n_max > limit:
            what = "number of MTP heads" if method == "draft-mtp" else "block size"
            yield f"K={spec_options.n_max} is limited to {limit}, the {what} of {drafter.title}"


def _address_notes(settings: Settings, user: LaunchOptions) -> Iterator[str]:
    """Options set by the environment, and a server open to everyone."""
    settable = (("HOST", settings.host), ("PORT", settings.port), ("CTX_SIZE", settings.context))
    for name, value in settable:
        if os.environ.get(f"LLAMA_ARG_{name}", "").strip() == str(value):
            yield f"LLAMA_ARG_{name}={value} from the environment is used"
    local = settings.host.startswith(("127.", "localhost", "::1"))
    keys = settings.api_key or user.secrets or os.environ.get(API_KEY_ENV)
    if not local and not keys and user.value("--api-key-file") is None:
        yield f"anyone who can reach {settings.host} can use this server; set SPECLLAMA_API_KEY"


def _slot_notes(slots: int, choice: Choice, caps: Capabilities) -> Iterator[str]:
    """What more than one slot costs."""
    if slots == 1:
        return
    yield f"{slots} slots share the context, and each gains less than a single slot would"
    spec = choice.speculation
    if spec and spec.uses_draft and caps.fact("slots_read_wrong_rows") is Tristate.YES:
        yield f"{caps.label} has lower acceptance with more than one slot; b11311 fixes that"


def usable_engine(llama_server: str | None) -> tuple[Engine, Capabilities]:
    """The engine and its capabilities. Raises EngineError if it is unusable, UsageError if it is
    another program."""
    engine = locate(llama_server)
    capabilities = read_capabilities(engine)
    if capabilities.problem == NO_OPTIONS:
        raise UsageError(
            f"{engine.label} is not a llama-server: {NO_OPTIONS}",
            "Set another with --llama-server, or use `--llama-server embedded`.",
        )
    if capabilities.problem:
        others = (
            "run `pip install -U xllamacpp`" if engine.embedded else "use `--llama-server embedded`"
        )
        raise EngineError(
            f"{engine.label} cannot be used: {capabilities.problem}",
            f"Set another with --llama-server, or {others}.",
        )
    return engine, capabilities


def target_info(path: Path) -> ModelInfo:
    """The model to serve. Raises GgufError or UsageError if the file is not one."""
    checkpoints.reject_checkpoint(path)
    target = _with_ollama_name(read_model(path))
    if target.kind != "model":
        raise UsageError(
            f"{path}: {file_of_kind(target.kind)} cannot be served on its own",
            "Use the model it belongs to.",
        )
    return target
