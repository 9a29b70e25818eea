"""What a fix and a headline must look like, for the catalogue's words and for those that checks put together."""

from __future__ import annotations

import re

COMMANDS = frozenset((
    "chronyc", "curl", "export", "grep", "ibstat", "ip", "kill", "kubectl", "modprobe", "pdctl", "pip", "ps", "python",
    "scontrol", "sinfo", "smg", "ss", "sudo", "tail", "ulimit", "unset",
))  # fmt: skip
VERBS = frozenset((
    "add", "draw", "drop", "give", "install", "list", "lower", "make", "move", "open", "pin", "raise",
    "refuse", "remove", "rename", "repair", "restart", "run", "send", "set", "start", "stop", "update", "use", "write",
))  # fmt: skip
LONGEST = 200  # characters of a sentence; a command is as long as it must be
SOUP = re.compile(r"for example|, which |; |\bthen\b|\(see |\?|\.$|\. [A-Z]|\bplease\b")
# Two sentences with a comma between them, names repeated between colons, numbers that disagree with their verb.
CRAMPED = re.compile(
    r" (has|serves|runs|says) [^:]*, (?!but|and|which|where|because|so)"
    r"\S+ (?:and \S+ )?(?:\1|have|serve|run|say|listens) "
    r"|(?P<name>\S+): (?P=name): | is no [a-z]+ number| lines that mean |/s of \S+ \S+ are "
)
# Words that are not said so in English → what is.
UNSAID = {
    r"without a word": "silently",
    r"in silence": "silently",
    r"belongs? into": "belongs in",
    r"\bBeside its\b": "Besides",
    r"ends? (?:the|its) start\b": "makes the start fail",
    r"typing error": "typo",
    r", `pdctl \w+` prints": "a bracket",
    r"time-outs?\b": "timeout",
    r"replaces? \w+ by ": "replaces … with",
    r"notices of": "notifications",
}
HALF = re.compile(r"^(?:it|that|which|and|but) |^its .* (?:holds|is|are|has|cannot)\b| (?:is|are|has|have|not set)$")


def of_fix(fix: str) -> str:
    """What is wrong with it: empty for a command, or for one imperative sentence."""
    first = fix.split(" ", 1)[0] if fix else ""
    if not fix.strip() or fix != fix.strip():
        return "it is empty, or has blanks around it"
    if "{" in fix and re.search(r"\{[a-z_]+(\|[^}]*)?\}", fix) and "name:" not in fix and "path:" not in fix:
        return "a placeholder is left"
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", fix)
    unclear = re.search(r"<[^>]*>|\b(?:OBSERVED|EXPECTED|NEEDED|MORE|RIGHT|LABELS)\b", bare)
    if unclear:
        return f"nobody knows what to write for `{unclear[0]}`, or a shell takes it for a redirection"
    if first in COMMANDS:
        return "a command with a remark behind it" if re.search(r"[a-z]\. |, with |, and |\(lists", fix) else ""
    if first not in VERBS:
        return f"`{first}` is neither a command nor a verb"
    if len(fix.splitlines()[0]) > LONGEST:
        return f"longer than {LONGEST} characters"
    found = SOUP.search(bare)
    if found:
        return f"`{found[0]}` is no part of one imperative sentence"
    return "more than two commas" if re.sub(r"\d,\d", "", bare).count(", ") > 2 else ""


def of_headline(headline: str) -> str:
    """What is wrong with it: empty for an observation on one line."""
    if not headline or headline != headline.strip() or "\n" in headline:
        return "it is empty, has blanks around it, or several lines"
    if headline.endswith((".", ":", ",", " ")) or "  " in headline or ": :" in headline or " ," in headline:
        return "its end or its punctuation"
    if re.search(r"\b(None|nan|null|INSTANCE|OBSERVED|EXPECTED)\b", headline.replace("send null", "")):
        return "a value was not filled in"
    cramped = CRAMPED.search(headline)
    if cramped:
        return f"`{cramped[0]}` is not one plain sentence"
    doubled = re.search(r"\b(\w{2,}) \1\b", headline)
    return f"`{doubled[0]}`" if doubled else ""


def of_prose(text: str) -> str:
    """What is wrong with it: empty for words that are said so in English. Quoted lines of programs are left out."""
    told = re.sub(r'"[^"]*"', "", text)
    found = next((match for words in UNSAID if (match := re.search(words, told))), None)
    return (
        f"`{found[0]}`: say {next(right for words, right in UNSAID.items() if re.search(words, found[0]))}"
        if found
        else ""
    )


def of_expected(expected: str) -> str:
    """What is wrong with it: a value or a state, not half of another sentence."""
    if not expected.strip():
        return "it is empty"
    found = HALF.search(expected)
    return f"`{found[0].strip()}` is half a sentence" if found else ""
