"""A llama-server command line matched against a build: its options and methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from specllama.engine.capabilities import Capabilities
from specllama.engine.helptext import HelpOption
from specllama.formats import flags
from specllama.formats.found_command import EnvVariable, FoundCommand
from specllama.formats.shell_words import Word

SPEC_TYPE_VARIABLE = "LLAMA_ARG_SPEC_TYPE"
_DRAFT_FILE = ("-md", "--model-draft", "--spec-draft-model")
_DRAFT_REPO = ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?::[\w.-]+)?")
_DRAFT_PRESETS = ("--fim-qwen-7b-spec", "--fim-qwen-14b-spec")  # arg.cpp: with no spec-type


@dataclass(frozen=True)
class OptionUse:
    """One option as written. `name`: as llama.cpp looks it up; `option` None: this build has none of
    that name. `index`: of its word; `values`: of the words of its values. `count`: of all its
    words."""

    name: str
    option: HelpOption | None
    index: int
    values: tuple[int, ...]
    written: str
    count: int

    @property
    def names(self) -> tuple[str, ...]:
        return self.option.names if self.option is not None else (self.name,)

    @property
    def usable(self) -> bool:
        return self.option is not None and not self.option.removed


@dataclass(frozen=True)
class ParsedCommand:
    """`unexpected`: words where an option should be. `incomplete`: an unknown variable may contain
    any option, so nothing is known to be missing."""

    command: FoundCommand
    caps: Capabilities
    uses: tuple[OptionUse, ...]
    unexpected: tuple[int, ...]
    incomplete: bool

    def word(self, number: int) -> Word:
        return self.command.words[number]

    @cached_property
    def _by_name(self) -> dict[str, list[OptionUse]]:
        out: dict[str, list[OptionUse]] = {}
        for use in self.uses:
            for name in use.names:
                out.setdefault(name, []).append(use)
        return out

    def all(self, *names: str) -> tuple[OptionUse, ...]:
        """Every use of the options with one of these spellings, usable in this build or not."""
        found = {u.index: u for n in names for u in self._by_name.get(n, ())}
        return tuple(found[index] for index in sorted(found))

    def last(self, *names: str) -> OptionUse | None:
        uses = (self._by_name[n][-1] for n in names if n in self._by_name)
        return max(uses, key=lambda u: u.index, default=None)

    def value(self, *names: str) -> Word | None:
        """The value that counts, the last one."""
        use = self.last(*names)
        return self.word(use.values[0]) if use is not None and use.values else None

    def text(self, *names: str) -> str | None:
        """The value of an option, by an argument or its variable; None also if a shell variable
        hides it."""
        word = self.value(*names)
        if word is not None:
            return word.text if word.fixed else None
        option = next((o for n in names if (o := self.caps.find(n)) is not None), None)
        found = self.variable(option.env) if option is not None and option.env else None
        return found.value if found is not None and found.fixed else None

    @cached_property
    def _variables(self) -> dict[str, EnvVariable]:
        return {v.name: v for v in self.command.variables}

    def variable(self, name: str) -> EnvVariable | None:
        """The one that counts, the last of that name."""
        return self._variables.get(name)

    def show(self, use: OptionUse) -> str:
        """The option and its values as written."""
        return " ".join([use.written, *(self.word(v).text for v in use.values)])

    @cached_property
    def draft_uses(self) -> tuple[OptionUse, ...]:
        """Options that set a draft, or are meant to."""
        known = {*_DRAFT_FILE, *_DRAFT_REPO, *_DRAFT_PRESETS}
        return tuple(u for u in self.uses if known & set(u.names) or self._means_draft(u))

    def _means_draft(self, use: OptionUse) -> bool:
        wrong = self.wrong_flag(use)
        return wrong is not None and wrong.means in ("draft-file", "draft-repo")

    @cached_property
    def has_draft(self) -> bool:
        return bool(self.draft_uses or self.draft_variable)

    @cached_property
    def draft_variable(self) -> str:
        """The variable that sets a draft, also by its old name; "" = none."""
        names = ("LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_SPEC_DRAFT_HF_REPO")
        for v in self.command.variables:
            if v.name in names or flags.renamed_variables().get(v.name) in names:
                return f"{v.name}={v.value}"
        return ""

    def wrong_flag(self, use: OptionUse) -> flags.WrongFlag | None:
        """The table's entry of an option that this build does not have."""
        found = None if use.usable else flags.wrong_flags().get(use.name)
        if found is None or found.means != "draft-file" or not use.values:
            return found
        text = self.word(use.values[0]).text
        if text.lower() in ("[ngram]", "ngram"):  # vLLM's value in place of a model
            return replace(found, means="types:ngram-simple")
        from_hub = _REPO.fullmatch(text) is not None and "gguf" in text.lower()
        return replace(found, means="draft-repo") if from_hub else found

    def draft_repo_of(self, use: OptionUse) -> str:
        """The Hugging Face repository given as a draft where llama-server needs a GGUF file; "" =
        none."""
        known = self.wrong_flag(use)
        if known is None or known.means != "draft-file" or not use.values:
            return ""
        text = self.word(use.values[0]).text
        return text if _REPO.fullmatch(text) and not text.lower().endswith(".gguf") else ""

    @cached_property
    def type_lists(self) -> tuple[str, ...]:
        """The values of every --spec-type, as written."""
        texts = [self.word(u.values[0]) for u in self.all("--spec-type") if u.values]
        words = [w.text for w in texts if w.fixed]
        if variable := self.variable(SPEC_TYPE_VARIABLE):
            words.append(variable.value)
        return tuple(words)

    @cached_property
    def given_types(self) -> tuple[str, ...]:
        """The names in them, also where llama-server would not split them."""
        return tuple(t.strip() for w in self.type_lists for t in re.split("[,|;]", w) if t.strip())

    @cached_property
    def types(self) -> tuple[str, ...]:
        """The intended methods: known names, each once, without `none`."""
        meant = [meant_type(t, self.caps) for t in self.given_types]
        for use in self.uses:
            if (w := self.wrong_flag(use)) is None:
                continue
            if w.means.startswith("types:"):
                meant.append(w.means.partition(":")[2])
            elif w.means == "types" and use.values:
                meant.append(meant_type(self.word(use.values[0]).text, self.caps))
        if self.all("--spec-default"):
            meant.append("ngram-mod")
        return tuple(dict.fromkeys(t for t in meant if t != "none"))

    @cached_property
    def has_types(self) -> bool:
        """Whether a method is set, or may be."""
        return bool(
            self.types
            or self.all("--spec-type", "--spec-default")
            or self.variable(SPEC_TYPE_VARIABLE)
        )

    @cached_property
    def drafts_without_type(self) -> bool:
        """Builds in which -md alone speculates: before --spec-type knew drafts, and with a
        warning until b9463 (llama.cpp PR 23988)."""
        build = self.caps.at_least
        return "draft-simple" not in self.caps.spec_types or 0 < build < 9464

    @cached_property
    def draft_types(self) -> tuple[str, ...]:
        return tuple(t for t in self.types if t.startswith("draft-"))

    @cached_property
    def ngram_types(self) -> tuple[str, ...]:
        return tuple(t for t in self.types if t.startswith("ngram-"))

    @cached_property
    def only_ngrams(self) -> bool:
        """Only n-gram methods, and no draft is set."""
        return bool(self.ngram_types) and not self.draft_types and not self.has_draft

    @cached_property
    def speculates(self) -> bool:
        config = any(w.means == "config" for u in self.uses if (w := self.wrong_flag(u)))
        return bool(self.types) or self.has_draft or config


def meant_type(given: str, caps: Capabilities) -> str:
    """The method that a name stands for: corrected in case and dashes, or another program's name."""
    plain = given.lower()
    for name in (given, plain, plain.replace("_", "-")):
        meant = flags.type_aliases().get(name, name)
        if meant in caps.spec_types or meant in flags.type_aliases().values():
            return meant
    return given


def parse_command(command: FoundCommand, caps: Capabilities) -> ParsedCommand:
    """The options of a command line, as llama.cpp's parser splits them."""
    uses: list[OptionUse] = []
    unexpected: list[int] = []
    words, index, incomplete = command.words, 0, command.partial
    while index < len(words):
        word = words[index]
        if not word.text.startswith("-") and not word.text.startswith("LLAMA_ARG_"):
            incomplete = incomplete or not word.fixed
            if word.fixed:
                unexpected.append(index)
            index += 1
            continue
        use = _use(words, index, caps, command.paired)
        uses.append(use)
        index += use.count
    return ParsedCommand(command, caps, tuple(uses), tuple(unexpected), incomplete)


def _use(words: Sequence[Word], index: int, caps: Capabilities, paired: bool) -> OptionUse:
    written = words[index].text
    name = lookup_name(written)
    option = find_option(name, caps)
    if option is None and "=" in name:
        return OptionUse(name, None, index, (), written, 1)
    if paired:
        switch = option is not None and not option.hint and not option.removed
        return OptionUse(name, option, index, () if switch else (index + 1,), written, 2)
    arity = _arity(name, option, words[index + 1 : index + 2])
    values: list[int] = []
    for number in range(index + 1, min(index + 1 + arity, len(words))):
        text = words[number].text
        if text.startswith("-") and is_option(text, caps):
            break  # llama.cpp would use it as the value, but another option is intended
        values.append(number)
    return OptionUse(name, option, index, tuple(values), written, 1 + len(values))


def _arity(name: str, option: HelpOption | None, following: Sequence[Word]) -> int:
    known = flags.wrong_flags().get(name)
    if known is not None and (option is None or option.removed):
        return 2 if known.pair else int(known.takes_value)
    if option is not None:
        return option.arity if option.hint else 0
    return int(bool(following) and not following[0].text.startswith("-"))


def lookup_name(written: str) -> str:
    """The spelling that llama.cpp looks up (arg.cpp: _ is read as -)."""
    return written.replace("_", "-") if written.startswith("--") else written


def find_option(name: str, caps: Capabilities) -> HelpOption | None:
    """The option, usable or listed as removed; also by its variable (presets)."""
    usable = caps.find(name)
    if usable is not None:
        return usable
    if name.startswith("LLAMA_ARG_"):
        return next((o for o in caps.options if o.env == name), None)
    return next((o for o in caps.options if name in o.names), None)


def is_option(text: str, caps: Capabilities) -> bool:
    """Whether a word is certainly an option: of this build, or a known wrong one."""
    name = lookup_name(text)
    return find_option(name, caps) is not None or name in flags.wrong_flags()
