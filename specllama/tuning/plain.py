"""What one launch without speculation tells: t_1, the cost of verifying b tokens, and answers
whose tokens are known."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from specllama.engine.client import Client, Ids, Prompt
from specllama.engine.errors import EngineError
from specllama.tuning import concurrent
from specllama.tuning.arms import Plain, Served
from specllama.tuning.confidence import Ratios, ratios, shrunk
from specllama.tuning.costs import verifying
from specllama.tuning.errors import TuningError
from specllama.tuning.measure import (
    WARM_UP,
    Answer,
    Job,
    TokenizedPrompt,
    ask,
    greedy_texts,
    measured,
    short_steps,
    warm_up,
)
from specllama.tuning.run import Run, Task

# Sizes of the batches: every one that a short draft makes (a kernel may be slow at one of
# them), and some up to the longest copy.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33, 65)
_OFTEN = 17  # sizes up to this are measured in every round
_ALWAYS = 5  # up to this whatever the time: a slow machine learns no more than it can afford
_ROUNDS = 3
_COST_SHARE = 0.07  # of the budget, for V(b)
_ANSWERS_SHARE = {True: 0.45, False: 0.3}  # used up when the answers end; True: no draft follows
_LEAST_ANSWERS, _MOST_ANSWERS = 3, 10
_FEW_ANSWERS, _FEW_TOKENS = 2, 16  # where only the plain step's time is of use
_WITH_DRAFT = 17  # the largest batch where copies only come beside a draft
_GREEDY = 2
_FIRST_TOKENS, _FIRST_TRIES = 12, 4
_SHORT = 4  # requests of two tokens after each answer


def learn(run: Run, served: Served) -> Plain:
    """Everything a plain server tells. Raises TuningError when it cannot be measured."""
    client, task = served.client, run.task
    run.say("measuring without speculation")
    questions, lost, first = introduced(run, client)
    samples: dict[int, list[float]] = {}
    if questions[0].ids:
        run.say("measuring what verifying several tokens costs")
        samples = batches(client, questions, run.job(_COST_SHARE * task.budget), _largest(task))
        if len(samples) < 2:
            lost += ("cache_prompt: what verifying costs is learnt from launches with a draft",)
    run.ready(questions, first, _prompt_ms(samples, first))
    run.say("answering without speculation")
    answers, short = _answers(run, client)
    found = measured(answers)
    cost = found.cost if task.slots == 1 else measured(_alone(run, client, first)).cost
    if cost is None:
        raise TuningError("the answers are too short to show a speed", "Give other --prompts.")
    run.greedy = run.asked[:_GREEDY] if task.thorough else []
    greedy = greedy_texts(client, run.greedy, run.job())
    costs = verifying(samples, cost, task.output_share, task.slots)
    found = replace(found, greedy=greedy, missing=())
    return Plain(found, costs, lost, run.load_s, shrunk(short))


def introduced(
    run: Run, client: Client
) -> tuple[tuple[TokenizedPrompt, ...], tuple[str, ...], Answer]:
    """The prompts with their ids, what this build does not tell, and an answer that shows how
    fast the server is."""
    prompts = run.task.prompts
    plain = tuple(TokenizedPrompt(p) for p in prompts)
    job = replace(run.job(), tokens=_FIRST_TOKENS)
    try:
        hello = client.tokenize(WARM_UP)
        client.continue_ids(hello, 2, job.sampling, False)  # the first request is slower
        first = plain_answer(client, TokenizedPrompt(WARM_UP, hello), job)
        ids = [client.tokenize(_text(client, p, run.task)) for p in prompts]
    except EngineError:
        warm_up(client, job)
        said = "/apply-template or /tokenize: n-gram sizes are not predicted, but tried"
        return plain, (said,), _first(client, plain, job)
    if not all(ids) or not first.ids or not first.ms_per_token:
        said = "return_tokens: n-gram sizes are not predicted, but tried"
        return plain, (said,), _first(client, plain, job)
    return tuple(TokenizedPrompt(p, i) for p, i in zip(prompts, ids, strict=True)), (), first


def _text(client: Client, prompt: Prompt, task: Task) -> str:
    as_is = isinstance(prompt, str) and not task.chat
    return str(prompt) if as_is else client.render(prompt, task.sampling)


def _first(client: Client, questions: Sequence[TokenizedPrompt], job: Job) -> Answer:
    """An answer that shows how fast the server is: some end after a word."""
    found: list[Answer] = []
    shortest = sorted(questions, key=lambda q: len(q.ids) or len(str(q.prompt)))
    for question in shortest[:_FIRST_TRIES]:
        found.append(ask(client, question, job))
        if found[-1].tokens > job.tokens / 2:
            break
    return max(found, key=lambda a: a.tokens)


def _largest(task: Task) -> int:
    """The most tokens that a step may have to verify."""
    if task.copies_alone and task.ngrams:
        return _SIZES[-1] * task.slots
    drafted = max((c.longest for c in task.candidates), default=1) + 1
    return max(drafted, _WITH_DRAFT if task.ngrams else 0) * task.slots


def batches(
    client: Client,
    questions: Sequence[TokenizedPrompt],
    job: Job,
    largest: int = _SIZES[-1],
    rounds: int = _ROUNDS,
) -> dict[int, list[float]]:
    """ms of a batch of b new tokens behind a prompt that is in the cache, by b as the server
    counted it: with a sliding window or recurrent state it goes back to a checkpoint and
    evaluates more than was sent. Large batches once, small ones several times."""
    by_length = sorted(questions, key=lambda q: len(q.ids))
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
            except EngineError:  # the one token answered ended within a character
                continue
            if timings is not None and 0 < timings.prompt_tokens <= 2 * _SIZES[-1]:
                found.setdefault(timings.prompt_tokens, []).append(timings.prompt_ms)
        job.tick()
    return found


def _prompt_ms(samples: dict[int, list[float]], first: Answer) -> float:
    """ms to evaluate a token of a prompt: at the largest batch seen."""
    if samples:
        size = max(samples)
        return min(samples[size]) / size
    return first.prompt_ms / max(1, first.prompt_tokens)


def _answers(run: Run, client: Client) -> tuple[list[Answer], Ratios]:
    """Plain answers while there is time. Few where a draft follows, whose own launch tells
    more, and nothing is to be replayed. Beside each, where drafts follow, how much longer the
    steps of short requests take than its own: those are how a server that drafts is asked for
    plain steps."""
    task = run.task
    share = _ANSWERS_SHARE[not task.candidates]
    job = run.job(share * task.budget - run.spent)
    least, most = _LEAST_ANSWERS, max(_LEAST_ANSWERS, min(_MOST_ANSWERS, len(task.prompts)))
    if not (task.ngrams and task.copies_alone):
        least = most = _FEW_ANSWERS
        job = replace(job, tokens=min(job.tokens, _FEW_TOKENS))
    if task.slots > 1:
        some = len(task.prompts) // (2 * task.slots)  # the rest is for what follows
        found = concurrent.rounds(run, client, job, max(_LEAST_ANSWERS, min(most, some)))
        return found, Ratios()
    out: list[Answer] = []
    beside: list[tuple[float, float, float]] = []
    shown = 0  # answers that show a speed: some end after a word
    while (len(out) < most and not (job.over and len(out) >= least)) or (
        shown < _FEW_ANSWERS and len(out) < _MOST_ANSWERS
    ):
        question = run.next_question()
        out.append(plain_answer(client, question, job))
        shown += out[-1].ms_per_token > 0
        if task.candidates and question.ids:
            steps = short_steps(client, question, job, _SHORT)
            beside += [(s.ms, out[-1].ms_per_token, 1.0) for s in steps]
        run.say()
    return out, ratios(beside)


def _alone(run: Run, client: Client, first: Answer) -> list[Answer]:
    """Two answers with nothing beside them: a plain step is one token's."""
    questions = run.waiting or run.asked
    return [first, _first(client, questions, replace(run.job(), tokens=_FIRST_TOKENS))]


def plain_answer(client: Client, question: TokenizedPrompt, job: Job) -> Answer:
    """One answer of a plain server with all its token ids, where it gives them: not streamed,
    since a stream leaves out those within a character. `steps` are not seen then."""
    if not question.ids:
        return ask(client, question, job)
    started = time.monotonic()
    got = client.continue_ids(question.ids, job.tokens, job.sampling, False)
    if got.timings is None:
        raise EngineError("the server's answers carry no timings: it is no llama-server")
    t = got.timings
    ids = got.ids or _by_text(client, got.text, t.tokens)
    first = (time.monotonic() - started) * 1000 - t.ms
    return Answer(
        t.prompt_tokens, t.prompt_ms, max(0.0, first), t.tokens, t.ms, 0, 0, got.text, (),
        question.ids, ids,
    )  # fmt: skip


def _by_text(client: Client, text: str, tokens: int) -> Ids:
    """The ids of an answer whose server gives none (ik_llama.cpp knows no return_tokens); ()
    where its text makes another number of them: the last may be its end, which is no text."""
    ids = client.tokenize(text, special=False)
    return ids if 0 <= tokens - len(ids) <= 1 else ()
