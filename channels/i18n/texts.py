"""Texts: one method a message."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

from sayso.channels.types import Turn

#: One TOML file per language, named by its BCP 47 primary subtag.
CATALOGUES = Path(__file__).parent / "catalogues"
#: The languages that have a catalogue, in alphabetical order.
LANGUAGES = tuple(sorted(path.stem for path in CATALOGUES.glob("*.toml")))
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_RELATION = re.compile(r"n(?: % (?P<modulus>\d+))? (?P<equals>!?=) (?P<ranges>\d+(?:\.\.\d+)?(?:,\d+(?:\.\.\d+)?)*)")
#: Spoken where no catalogue matches.
FALLBACK = "en"
#: Characters of a language tag that are read.
MAX_TAG_CHARS = 40
#: Characters of a preview that are repeated once it was shown whole, so that what became of it fits in one message of
#: every platform.
MAX_REPEATED_CHARS = 300


@lru_cache(maxsize=256)
def texts_for(language: str = "") -> Texts:
    """The words of a BCP 47 tag: "pt-BR" speaks pt, an unknown tag or none speaks English."""
    return _texts(shipped(language) or FALLBACK)


def shipped(tag: str) -> str:
    """The language of a BCP 47 tag, "" when it has no catalogue: "pt-BR" is pt.

    A catalogue says which subtags mean a script of the language that it is not written in: zh is no zh-Hant.
    """
    primary, *others = re.split("[-_]", tag[:MAX_TAG_CHARS].lower())
    if primary not in LANGUAGES or not set(catalogue(primary)["not_for"]).isdisjoint(others):
        return ""
    return primary


@cache
def catalogue(language: str) -> dict[str, Any]:
    """One shipped language's catalogue, as written. Raises FileNotFoundError for a language not in `LANGUAGES`."""
    return tomllib.loads((CATALOGUES / f"{language}.toml").read_text(encoding="utf-8"))


def brief(preview: str) -> str:
    """Enough of a preview to know it again; one that is cut says so, and leaves nothing open that it has begun."""
    if len(preview) <= MAX_REPEATED_CHARS:
        return preview
    cut = preview[:MAX_REPEATED_CHARS]
    if (len(cut) - len(cut.rstrip("\\"))) % 2:  # what it escapes was cut off
        cut = cut[:-1]
    return f"{cut}...\n```" if cut.count("```") % 2 else f"{cut}..."


class Texts:
    """One language's words, for the life of the process. Previews, results and codes are inserted as they are; only
    what is said of a question that was shown before repeats no more than its beginning.
    """

    def __init__(self, language: str, words: dict[str, Any]) -> None:
        self.language = language
        self._words = words
        #: What people reply to confirm or cancel.
        self.yes: str = words["yes"]
        self.no: str = words["no"]
        #: Button labels, at most 20 characters.
        self.confirm_label: str = words["confirm_label"]
        self.cancel_label: str = words["cancel_label"]
        self.undo_label: str = words["undo_label"]

    def question(self, preview: str, seconds: float, code: str = "") -> str:
        """The preview and how to answer it; with a code, only the yes that names it confirms."""
        key = "question_with_code" if code else "question"
        return self._say(key, preview=preview, duration=self._duration(seconds), code=code)

    def code_needed(self, preview: str, code: str) -> str:
        """A bare yes is not enough for this one."""
        return self._say("code_needed", preview=brief(preview), code=code)

    def early(self, preview: str) -> str:
        """The yes was said before the question was delivered."""
        return self._say("early", preview=brief(preview))

    def another_quoted(self, preview: str, code: str = "") -> str:
        """The yes quotes a message that does not show the open question."""
        yes = f"{self.yes} {code}" if code else self.yes
        return self._say("another_quoted", preview=brief(preview), yes=yes)

    def unclear(self, preview: str, code: str = "") -> str:
        """The reply may be an answer, and is neither yes nor no: the question is asked once more."""
        return self._say("unclear", preview=brief(preview), yes=f"{self.yes} {code}" if code else self.yes)

    def asked_elsewhere(self, preview: str) -> str:
        """The yes was said in another thread than the open question."""
        return self._say("asked_elsewhere", preview=brief(preview))

    def anonymous(self) -> str:
        """An anonymous admin spoke to the bot."""
        return self._say("anonymous")

    def ignored(self, preview: str) -> str:
        """The user tapped it away without deciding."""
        return self._say("ignored", preview=brief(preview))

    def done(self, preview: str, result: str) -> str:
        """The action ran. What it reported says it best."""
        return result or self._say("done", preview=brief(preview))

    def failed(self, preview: str) -> str:
        """The action was started and raised an error."""
        return self._say("failed", preview=brief(preview))

    def unknown(self, preview: str) -> str:
        """The action was started and nobody knows how it ended."""
        return self._say("unknown", preview=brief(preview))

    def not_done(self, preview: str) -> str:
        """The action was interrupted, and a check showed that it did not happen."""
        return self._say("not_done", preview=brief(preview))

    def correction(self, preview: str, result: str) -> str:
        """The action had ended after all."""
        return self._say("correction", done=self.done(preview, result))

    def cancelled(self, preview: str) -> str:
        """The user said no."""
        return self._say("cancelled", preview=brief(preview))

    def expired(self, preview: str) -> str:
        """The yes came too late."""
        return self._say("expired", preview=brief(preview))

    def dropped(self, preview: str) -> str:
        """The user went on to something else."""
        return self._say("dropped", preview=brief(preview))

    def unsafe(self, preview: str) -> str:
        """The record is not what was shown, or nothing can run it any more."""
        return self._say("unsafe", preview=brief(preview))

    def overtaken(self) -> str:
        """Two messages at once, and the other one won."""
        return self._say("overtaken")

    def tampered(self) -> str:
        """The stored record is not what was shown: its words are not ours to repeat."""
        return self._say("tampered")

    def stale(self) -> str:
        """A button of a prompt that is over."""
        return self._say("stale")

    def not_yours(self) -> str:
        """A button that waits for somebody else's tap."""
        return self._say("not_yours")

    def model_away(self) -> str:
        """The model could not be asked. Its own words are for the operator."""
        return self._say("model_away")

    def model_failed(self, kind: str) -> str:
        """Return why there is no answer: the model is "away", "busy", "refused", "too_long" or "cut_off"."""
        return self._say(f"model_{kind}")

    def model_lost(self, kind: str = "away") -> str:
        """Return why there is no answer, as `model_failed` does, once tools have run that may have done a part."""
        return self._say("model_lost" if kind == "away" else f"lost_{kind}")

    def answer_cut(self) -> str:
        """Return what follows an answer that reached its length limit."""
        return self._say("answer_cut")

    def plan(self, previews: Sequence[str]) -> str:
        """The preview of several steps under one yes."""
        lines = [_on_one_line(preview) for preview in previews]
        return "\n".join([self._say("plan", count=str(len(previews))), *self._numbered(lines)])

    def plan_report(self, steps: Sequence[tuple[str, str, str]]) -> str:
        """How a plan ended: per step its state (done, failed, unknown, cancelled = not started), preview and result."""
        states = Counter(state for state, _, _ in steps)
        head = self._say("report", done=str(states["done"]), count=str(len(steps)))
        lines = [head, *self._numbered([self._step(*step) for step in steps])]
        for state in ("unknown", "failed", "cancelled"):
            if states[state]:
                return "\n".join([*lines, "", self._say(f"after_{state}")])
        return "\n".join(lines)

    def undo(self, preview: str) -> str:
        """The preview of taking an action back."""
        return self._say("undo", preview=preview)

    def undo_offer(self, seconds: float) -> str:
        """How long an action can be taken back."""
        return self._say("undo_offer", duration=self._duration(seconds))

    def busy(self) -> str:
        """The mailbox of this conversation is full."""
        return self._say("busy")

    def too_fast(self) -> str:
        """This person writes more per minute than is answered: the last message was not taken."""
        return self._say("too_fast")

    def crowded(self) -> str:
        """So many people write that no new conversation can begin."""
        return self._say("crowded")

    def stranger(self) -> str:
        """Only people on a list may talk to the bot here, and this one is on none."""
        return self._say("stranger")

    def pairing_code(self, code: str, seconds: float) -> str:
        """With this code an operator lets somebody in, for so long."""
        return self._say("pairing_code", code=code, duration=self._duration(seconds))

    def your_id(self, name: str) -> str:
        """The id that whoever asks has on this channel."""
        return self._say("your_id", name=name)

    def approved(self) -> str:
        """An operator let them in."""
        return self._say("approved")

    def too_long(self) -> str:
        """The turn was ended because it took too long."""
        return self._say("too_long")

    def still_working(self) -> str:
        """The turn takes longer than one waits without a word."""
        return self._say("still_working")

    def broken(self) -> str:
        """The turn was ended by an error of ours."""
        return self._say("broken")

    def reference(self, reference: str) -> str:
        """What the log has of an error that stays private."""
        return self._say("reference", reference=reference)

    def channel_gone(self) -> str:
        """The channel was taken out of the configuration."""
        return self._say("channel_gone")

    def interrupted_before(self) -> str:
        """Each worker that tried this turn died, so it is not tried again; nobody knows how far it came."""
        return self._say("interrupted_before")

    def budget_spent(self) -> str:
        """The run, the conversation or the day has used up what it may spend on models."""
        return self._say("budget_spent")

    def refused(self) -> str:
        """A guardrail stopped the question or the answer; why is for the operator."""
        return self._say("refused")

    def in_circles(self) -> str:
        """The run made the same calls again and again."""
        return self._say("in_circles")

    def too_many_steps(self) -> str:
        """The run took all the steps it may and has no answer."""
        return self._say("too_many_steps")

    def stopped(self) -> str:
        """The running work and the messages waiting behind it were let go."""
        return self._say("stopped")

    def nothing_to_stop(self) -> str:
        """Nothing was running and nothing waited."""
        return self._say("nothing_to_stop")

    def nothing_of_yours(self) -> str:
        """Nothing of this person's was running; what others of the group asked for goes on."""
        return self._say("nothing_of_yours")

    def repeated(self, text: str) -> str:
        """A text that may have arrived before, below its mark."""
        return self._say("repeated", text=text)

    def maybe_missing(self, name: str) -> str:
        """Said in place of a file that may have arrived before. Without a name it is `a_file()`."""
        return self._say("maybe_missing", name=name or self.a_file())

    def a_file(self) -> str:
        """What a file without a name is called inside `maybe_missing`."""
        return self._say("a_file")

    def not_delivered(self, preview: str) -> str:
        """A message could not be delivered; told later, or elsewhere."""
        return self._say("not_delivered", preview=preview)

    def reminder(self, text: str) -> str:
        """A reminder that is due."""
        return self._say("reminder", text=text)

    def reminder_set(self, text: str, when: str) -> str:
        """A reminder was taken on. `when` is the time in words or figures, as people are to read it."""
        return self._say("reminder_set", text=text, when=when)

    def expired_unanswered(self, preview: str) -> str:
        """Nobody answered the question in time."""
        return self._say("expired_unanswered", preview=preview)

    def escalation(self, preview: str, channel: str, seconds: float) -> str:
        """Told to operators: nobody answered a question on `channel` yet; an answer counts for so long after it."""
        return self._say("escalation", preview=preview, channel=channel, duration=self._duration(seconds))

    def choose(self) -> str:
        """Above buttons that are answers to choose from."""
        return self._say("choose")

    def already_chosen(self, label: str) -> str:
        """One of these answers was chosen before."""
        return self._say("already_chosen", label=label)

    def help_intro(self) -> str:
        """Above the list of commands."""
        return self._say("help_intro")

    def command(self, name: str) -> str:
        """What the command of this name does. Raises KeyError for one that there is not."""
        return self._say(f"help_{name}")

    def asks_first(self, names: str) -> str:
        """The tools of these names are used only after a yes."""
        return self._say("asks_first", names=names)

    def needs_yes(self) -> str:
        """Beside such a tool."""
        return self._say("needs_yes")

    def no_tools(self) -> str:
        """This person may use no tools here."""
        return self._say("no_tools")

    def who(self, what: Literal["id", "name", "channel", "role", "aliases"], value: str) -> str:
        """One thing that is known of a person."""
        return self._say(f"who_{what}", value=value)

    def status_waiting(self, preview: str, seconds: float) -> str:
        """A question that can still be answered for so long."""
        return self._say("status_waiting", preview=brief(preview), duration=self._duration(seconds))

    def status_running(self, preview: str) -> str:
        """An action that was begun and has not ended."""
        return self._say("status_running", preview=brief(preview))

    def status_idle(self) -> str:
        """No question is open and no action is running."""
        return self._say("status_idle")

    def status_reminder(self, text: str, seconds: float) -> str:
        """What will be said in so long."""
        return self._say("status_reminder", text=text, duration=self._duration(seconds))

    def reset_done(self) -> str:
        """The history of this conversation is empty."""
        return self._say("reset_done")

    def _step(self, state: str, preview: str, told: str) -> str:
        if state == "done":
            return "\n   ".join(self.done(preview, told).splitlines())
        line, failed = self._say(f"report_{state}", preview=brief(_on_one_line(preview))), self.failed(preview)
        why = told.removeprefix(failed).strip() if state == "failed" and told.startswith(failed) else ""
        return "\n   ".join([line, *why.splitlines()])

    def _numbered(self, steps: Sequence[str]) -> list[str]:
        return [self._say("step", number=str(number), step=step) for number, step in enumerate(steps, start=1)]

    def _duration(self, seconds: float) -> str:
        """A duration in whole units, rounded down: never longer than people really have."""
        count, unit = _largest_unit(seconds)
        forms: dict[str, str] = self._words["duration"][unit]
        form = plural_form(self._words["plural"], count)
        return _filled(forms.get(form, forms["other"]), {"count": str(count)})

    def _say(self, key: str, **values: str) -> str:
        return _filled(self._words[key], {"yes": self.yes, "no": self.no} | values)


@cache
def _texts(language: str) -> Texts:
    return Texts(language, catalogue(language))


def _on_one_line(preview: str) -> str:
    """A preview that breaks its line could pass for a further step."""
    return " ".join(preview.split())


def _filled(template: str, values: dict[str, str]) -> str:
    """The template with its placeholders filled in one pass: braces inside a value stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)


def _largest_unit(seconds: float) -> tuple[int, str]:
    whole = max(1, int(seconds))
    if whole < 120:
        return whole, "seconds"
    return (whole // 60, "minutes") if whole < 7200 else (whole // 3600, "hours")


def plural_form(rules: dict[str, str], count: int) -> str:
    """Return the plural form of a whole number by a catalogue's rules, "other" when none of them holds.

    A rule is written as in Unicode's CLDR, such as "n % 10 = 2..4 and n % 100 != 12..14". Raises ValueError otherwise.
    """
    return next((form for form, rule in rules.items() if _holds(rule, count)), "other")


def _holds(rule: str, count: int) -> bool:
    """Return whether any of the alternatives of a rule holds for the number."""
    return any(all(_is_so(relation, count) for relation in case.split(" and ")) for case in rule.split(" or "))


def _is_so(relation: str, count: int) -> bool:
    parts = _RELATION.fullmatch(relation)
    if parts is None:
        raise ValueError(f"plural rule {relation!r} cannot be read: write it as in CLDR, such as 'n % 10 = 2..4'")
    number = count % int(parts["modulus"]) if parts["modulus"] else count
    ranges = [[int(end) for end in each.split("..")] for each in parts["ranges"].split(",")]
    return any(each[0] <= number <= each[-1] for each in ranges) == (parts["equals"] == "=")


class SpokenTexts(Protocol):
    """One language's words: `sayso.channels.i18n.texts.Texts`, as far as workers speak."""

    def busy(self) -> str:
        """Too many turns of this conversation wait."""

    def too_fast(self) -> str:
        """This person writes more per minute than is read."""

    @property
    def language(self) -> str:
        """Which one it is: a BCP 47 primary subtag."""

    def stranger(self) -> str:
        """Only people on a list may talk, and this one is on none."""

    def pairing_code(self, code: str, seconds: float) -> str:
        """With this code an operator lets them in, for so long."""

    def your_id(self, name: str) -> str:
        """Whoever asks has this id."""

    def crowded(self) -> str:
        """Too many conversations wait for another one to begin."""

    def too_long(self) -> str:
        """The turn was ended for taking too long."""

    def still_working(self) -> str:
        """The turn takes longer."""

    def broken(self) -> str:
        """The turn broke."""

    def interrupted_before(self) -> str:
        """Each worker that tried the turn died at it."""

    def stopped(self) -> str:
        """What ran, and what waited, was let go at the person's word."""

    def nothing_to_stop(self) -> str:
        """There was nothing to let go."""

    def nothing_of_yours(self) -> str:
        """There was nothing of this person's to let go, in a group: what others asked for goes on."""

    def channel_gone(self) -> str:
        """The channel is not configured any more."""

    def repeated(self, text: str) -> str:
        """A text that may have arrived before."""

    def maybe_missing(self, name: str) -> str:
        """What is said in place of a file that may have arrived before."""


#: The words for whoever wrote a turn.
TextsForTurn = Callable[[Turn], SpokenTexts]
#: The words of a language, by its BCP 47 tag; "" speaks the default.
TextsForLanguage = Callable[[str], SpokenTexts]
