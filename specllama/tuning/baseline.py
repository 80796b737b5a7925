"""Baseline launch: step time t_1, the cost of verifying b tokens, and responses with token ids."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from specllama.engine.client import Client, Ids, Prompt
from specllama.engine.errors import EngineError
from specllama.tuning import concurrent
from specllama.tuning.confidence import Ratios, ratios, shrunk
from specllama.tuning.costs import verify_costs
from specllama.tuning.errors import TuningError
from specllama.tuning.measure import (
    WARM_UP,
    Job,
    Response,
    TokenizedPrompt,
    greedy_texts,
    measurement_of,
    send_request,
    short_steps,
    warm_up,
)
from specllama.tuning.records import Baseline, RunningServer
from specllama.tuning.run import Run, Task

# Batch sizes: all that a short draft produces (a kernel may be slow at one of them), and some up
# to the longest n-gram draft.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33, 65)
_OFTEN = 17  # sizes up to this are measured in every round
_ALWAYS = 5  # sizes up to this are measured even if time is short
_ROUNDS = 3
_COST_SHARE = 0.07  # of the budget, for V(b)
_RESPONSES_SHARE = {True: 0.45, False: 0.3}  # spent when the responses end; True: no draft follows
_MIN_RESPONSES, _MAX_RESPONSES = 3, 10
_FEW_RESPONSES, _FEW_TOKENS = 2, 16  # if only the time of a plain step is needed
# If these are too little: more responses, and their share of the budget.
_MORE_RESPONSES, _MORE_SHARE = 5, 0.15
_WITH_DRAFT = 17  # the largest batch if n-grams are only used with a draft
_GREEDY = 2
_FIRST_TOKENS, _FIRST_TRIES = 12, 4
_SHORT = 4  # two-token requests after each response


def measure_baseline(run: Run, served: RunningServer) -> Baseline:
    """Measures a server without speculation. Raises TuningError if that fails."""
    client, task = served.client, run.task
    run.report("measuring the baseline")
    prompts, limitations, first = prepare_prompts(run, client)
    if prompts[0].ids:
        run.report("measuring verification costs")
        costs_job = run.job(_COST_SHARE * task.budget)
        run.batch_ms = server_batch_times(client, prompts, costs_job, _largest(task))
        if len(run.batch_ms) < 2:
            limitations += (
                "no prompt cache (cache_prompt): verification costs are only measured with a draft",
            )
    run.set_prompts(prompts, first, _prompt_ms(run.batch_ms, first))
    run.report("generating baseline responses")
    responses, short_step = _baseline_responses(run, client)
    found = measurement_of(responses)
    cost = found.cost if task.slots == 1 else measurement_of(_alone(run, client, first)).cost
    if cost is None:
        raise TuningError("the responses are too short to measure a speed", "Use other --prompts.")
    run.greedy = run.used_prompts[:_GREEDY] if task.thorough else []
    greedy = greedy_texts(client, run.greedy, run.job())
    costs = verify_costs(run.batch_ms, cost, task.output_share, task.slots)
    found = replace(found, greedy=greedy, missing=())
    return Baseline(found, costs, limitations, run.load_s, shrunk(short_step))


def measure_more(run: Run, served: RunningServer, before: Baseline) -> Baseline:
    """The baseline with more responses, at full length, and more batches. The same if there is no
    time left."""
    client, task = served.client, run.task
    responses = list(before.measurement.responses)
    most = len(responses) + _MORE_RESPONSES
    job = run.job(min(_MORE_SHARE * task.budget, run.seconds_left))
    run.report("generating longer baseline responses")
    while run.has_unused_prompts and len(responses) < most and not job.over:
        responses.append(baseline_response(client, run.next_prompt(), job))
        run.report()
    prompts = [q for q in run.used_prompts if q.ids]
    if prompts and not job.over:
        for size, ms in server_batch_times(client, prompts, job, _largest(task)).items():
            run.batch_ms.setdefault(size, []).extend(ms)
    found = measurement_of(responses)
    costs = verify_costs(run.batch_ms, found.cost or before.costs.plain_step, task.output_share)
    found = replace(found, greedy=before.measurement.greedy, missing=())
    return replace(before, measurement=found, costs=costs)


def prepare_prompts(
    run: Run, client: Client
) -> tuple[tuple[TokenizedPrompt, ...], tuple[str, ...], Response]:
    """The prompts with their token ids, what this build does not report, and a response that
    shows how fast the server is."""
    prompts = run.task.prompts
    untokenized = tuple(TokenizedPrompt(p) for p in prompts)
    job = replace(run.job(), tokens=_FIRST_TOKENS)
    try:
        hello = client.tokenize(WARM_UP)
        client.continue_ids(hello, 2, job.sampling, False)  # the first request is slower
        first = baseline_response(client, TokenizedPrompt(WARM_UP, hello), job)
        ids = [client.tokenize(_text(client, p, run.task)) for p in prompts]
    except EngineError:
        warm_up(client, job)
        limitation = "no /apply-template or /tokenize: n-gram sizes are tried instead of predicted"
        return untokenized, (limitation,), _first(client, untokenized, job)
    if not all(ids) or not first.ids or not first.ms_per_token:
        limitation = "no return_tokens: n-gram sizes are tried instead of predicted"
        return untokenized, (limitation,), _first(client, untokenized, job)
    return tuple(TokenizedPrompt(p, i) for p, i in zip(prompts, ids, strict=True)), (), first


def _text(client: Client, prompt: Prompt, task: Task) -> str:
    as_is = isinstance(prompt, str) and not task.chat
    return str(prompt) if as_is else client.render(prompt, task.sampling)


def _first(client: Client, prompts: Sequence[TokenizedPrompt], job: Job) -> Response:
    """A response that is long enough to show how fast the server is."""
    found: list[Response] = []
    shortest = sorted(prompts, key=lambda q: len(q.ids) or len(str(q.prompt)))
    for prompt in shortest[:_FIRST_TRIES]:
        found.append(send_request(client, prompt, job))
        if found[-1].tokens > job.tokens / 2:
            break
    return max(found, key=lambda a: a.tokens)


def _largest(task: Task) -> int:
    """The most tokens that one step may verify."""
    if task.ngrams_alone and task.ngrams:
        return _SIZES[-1] * task.slots
    drafted = max((c.longest for c in task.candidates), default=1) + 1
    return max(drafted, _WITH_DRAFT if task.ngrams else 0) * task.slots


def server_batch_times(
    client: Client,
    prompts: Sequence[TokenizedPrompt],
    job: Job,
    largest: int = _SIZES[-1],
    rounds: int = _ROUNDS,
) -> dict[int, list[float]]:
    """ms of a batch of b new tokens after a cached prompt, by b as counted by the server: with a
    sliding window or recurrent state it returns to a checkpoint and evaluates more than was
    sent. Large batches are measured once, small ones several times."""
    by_length = sorted(prompts, key=lambda q: len(q.ids))
    prefix = by_length[len(by_length) // 2 if len(by_length[0].ids) < 16 else 0].ids
    words = [t for q in by_length for t in q.ids[4:]] or list(prefix)
    cold = {"temperature": 0.0}
    found: dict[int, list[float]] = {}
    at = 0
    client.continue_ids(prefix, 1, cold, True)
    for turn in range(rounds):
        for size in _SIZES:
            late = job.over and (turn or size > _ALWAYS)
            if late or (turn and size > _OFTEN) or size > min(len(words), largest):
                continue
            new = [words[(at + i) % len(words)] for i in range(size)]
            at += size + 1
            try:
                timings = client.continue_ids((*prefix, *new), 1, cold, True).timings
            except EngineError:  # the single generated token ended within a character
                continue
            if timings is not None and 0 < timings.prompt_tokens <= 2 * _SIZES[-1]:
                found.setdefault(timings.prompt_tokens, []).append(timings.prompt_ms)
        job.tick()
    return found


def _prompt_ms(samples: dict[int, list[float]], first: Response) -> float:
    """ms per prompt token, at the largest measured batch."""
    if samples:
        size = max(samples)
        return min(samples[size]) / size
    return first.prompt_ms / max(1, first.prompt_tokens)


def _baseline_responses(run: Run, client: Client) -> tuple[list[Response], Ratios]:
    """Baseline responses while there is time; only a few if a draft follows and nothing is to be
    replayed. If drafts follow, also the ratio of short requests' steps to those within a
    response: a server that drafts shows its plain steps only in short requests."""
    task = run.task
    share = _RESPONSES_SHARE[not task.candidates]
    job = run.job(share * task.budget - run.seconds_spent)
    least, most = _MIN_RESPONSES, max(_MIN_RESPONSES, min(_MAX_RESPONSES, len(task.prompts)))
    if not (task.ngrams and task.ngrams_alone):
        least = most = _FEW_RESPONSES
        job = replace(job, tokens=min(job.tokens, _FEW_TOKENS))
    if task.slots > 1:
        some = len(task.prompts) // (2 * task.slots)  # the others are needed later
        found = concurrent.rounds(run, client, job, max(_MIN_RESPONSES, min(most, some)))
        return found, Ratios()
    out: list[Response] = []
    step_pairs: list[tuple[float, float, float]] = []
    timed = 0  # responses long enough to show a speed: some end after a word
    while (len(out) < most and not (job.over and len(out) >= least)) or (
        timed < _FEW_RESPONSES and len(out) < _MAX_RESPONSES
    ):
        prompt = run.next_prompt()
        out.append(baseline_response(client, prompt, job))
        timed += out[-1].ms_per_token > 0
        if task.candidates and prompt.ids:
            steps = short_steps(client, prompt, job, _SHORT)
            step_pairs += [(s.ms, out[-1].ms_per_token, 1.0) for s in steps]
        run.report()
    return out, ratios(step_pairs)


def _alone(run: Run, client: Client, first: Response) -> list[Response]:
    """Two responses without concurrent requests, for the time of a single-token step."""
    prompts = run.unused_prompts or run.used_prompts
    return [first, _first(client, prompts, replace(run.job(), tokens=_FIRST_TOKENS))]


def baseline_response(client: Client, prompt: TokenizedPrompt, job: Job) -> Response:
    """One baseline response with all its token ids, if the server returns them. Not streamed,
    since a stream omits the ids within a multi-byte character; `steps` stay empty."""
    if not prompt.ids:
        return send_request(client, prompt, job)
    started = time.monotonic()
    completion = client.continue_ids(prompt.ids, job.tokens, job.sampling, False)
    if completion.timings is None:
        raise EngineError("the server's responses contain no timings: it is not a llama-server")
    t = completion.timings
    ids = completion.ids or _by_text(client, completion.text, t.tokens)
    first = (time.monotonic() - started) * 1000 - t.ms
    return Response(
        t.prompt_tokens, t.prompt_ms, max(0.0, first), t.tokens, t.ms, 0, 0, completion.text, (),
        prompt.ids, ids,
    )  # fmt: skip


def _by_text(client: Client, text: str, tokens: int) -> Ids:
    """The ids of a response from a server without return_tokens (ik_llama.cpp), by tokenizing its
    text; () if their number differs. The last token may be the end of generation, without text."""
    ids = client.tokenize(text, special=False)
    return ids if 0 <= tokens - len(ids) <= 1 else ()
