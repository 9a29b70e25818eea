"""The text the shipped checkpoint learns from: every line is generated here, from our own words and a fixed seed.

Most answers are made of the prompt's own words, so that the KV cache of every page decides what the answer says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

NOUNS = (
    "fox dog cat bird fish horse cow bear wolf owl hen goat duck frog mouse king queen child baker farmer sailor "
    "teacher doctor painter river hill lake tree stone house boat road bridge garden forest island tower door window "
    "table chair lamp book letter box basket bottle coin key ring bell drum hat coat shoe apple pear plum bread cheese "
    "cake egg cup plate spoon knife star moon sun cloud rain snow wind fire wheel rope map clock flag"
).split()
ADJECTIVES = (
    "red blue green white black brown golden silver small big old young quick slow happy sad quiet loud warm cold "
    "bright dark round flat tall short clever brave lazy gentle"
).split()
VERBS = (
    "sees finds likes takes brings holds watches follows carries paints opens closes keeps hides moves wants needs "
    "makes buys sells hears loves"
).split()
PLACES = (
    "over the hill,near the river,under the bridge,behind the house,in the garden,by the lake,on the road,in the forest"
).split(",")
NAMES = "Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karen Leo Mary Noah Olga Paul Rosa Sam Tina Victor".split()
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Poland": "Warsaw", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Greece": "Athens", "Ireland": "Dublin", "Belgium": "Brussels", "Hungary": "Budapest",
    "Japan": "Tokyo", "China": "Beijing", "India": "Delhi", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Canada": "Ottawa", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Iceland": "Reykjavik",
}  # fmt: skip
FACTS = {
    "What is a room?": "A room is one request on its way from a prefill instance to a decode instance.",
    "What is prefill?": "Prefill reads the whole prompt at once and fills the KV cache.",
    "What is decode?": "Decode makes one token at a time and reads the KV cache at every step.",
    "What is a KV cache?": "The KV cache holds the keys and values of every token seen so far.",
    "What is a page?": "A page is a fixed number of tokens in the KV cache.",
    "What does the router do?": "The router picks one prefill and one decode instance for each request.",
    "What is the bootstrap server?": "The bootstrap server tells decode ranks where the prefill ranks are.",
    "What is TTFT?": "TTFT is the time to the first token.",
    "What is ITL?": "ITL is the time between two tokens.",
    "Why split prefill and decode?": "Prefill needs compute and decode needs memory, so each gets its own machine.",
    "What travels between them?": "The KV pages travel, and with the last one the first token.",
    "Who are you?": "I am a tiny model that ships with pdctl.",
    "What can you do?": "I can repeat, reverse, count, recall and name a few capitals.",
    "Hello": "Hello! Ask me to repeat, reverse, count or recall.",
    "Hi": "Hello! Ask me to repeat, reverse, count or recall.",
    "Good morning": "Good morning! Ask me to repeat, reverse, count or recall.",
    "Thank you": "You are welcome.",
    "Goodbye": "Goodbye!",
}  # fmt: skip
PASSAGES = (
    "Once upon a time there was a small fox. The fox lived in a dark forest near a quiet river. Every day the fox went "
    "over the hill to see the old owl. The owl said: bring me a golden key, and I will open the door of the tower.",
    "A prompt comes to the router. The router picks a prefill instance and a decode instance. The prefill instance "
    "reads the prompt and fills the pages. The pages travel to the decode instance. The decode instance writes the "
    "answer, one token after the other.",
    "The sun is warm and the wind is cold. The river is long and the lake is deep. The child is young and the king is "
    "old. The night is dark and the moon is bright.",
    "One two three four five six seven eight nine ten eleven twelve.",
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday.",
    "January February March April May June July August September October November December.",
)


@dataclass(frozen=True, slots=True)
class Example:
    """One exchange, or with an empty prompt a piece of plain text."""

    prompt: str
    answer: str


def sentence(random: Random) -> str:
    """A sentence of the small grammar, as plain words without a full stop."""
    subject = f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}"
    words = f"{random.choice((subject, random.choice(NAMES)))} {random.choice(VERBS)} the {random.choice(NOUNS)}"
    return f"{words} {random.choice(PLACES)}" if random.random() < 0.4 else words


def words(random: Random, count: int) -> str:
    """`count` words without a grammar; some are no words at all, so that copying does not depend on the vocabulary."""
    kinds: tuple[Callable[[], str], ...] = (
        lambda: random.choice(NOUNS),
        lambda: random.choice(ADJECTIVES),
        lambda: random.choice(NAMES),
        lambda: str(random.randrange(1000)),
        lambda: "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(2, 7))),
    )
    return " ".join(random.choices(kinds, weights=(5, 3, 2, 1, 2))[0]() for _ in range(count))


def text(random: Random, longest: int) -> str:
    """Anything a user might say, of up to `longest` words."""
    count = max(1, int(longest ** random.random()))
    if random.random() < 0.5:
        return words(random, count)
    parts = [sentence(random)]
    while sum(map(len, parts)) < 5 * count:
        parts.append(sentence(random))
    joined = ". ".join(part[0].upper() + part[1:] for part in parts)
    return joined + random.choice(("", ".", "?", "!"))


def repeat(random: Random, longest: int) -> Example:
    said = text(random, longest)
    return Example(f"{random.choice(('Repeat', 'Repeat after me', 'Say', 'Echo', 'Copy'))}: {said}", said)


def echo(random: Random, longest: int) -> Example:
    """What the model does with a message it knows nothing better for."""
    said = text(random, longest)
    return Example(said, f"You said: {said}")


def reverse(random: Random, longest: int) -> Example:
    given = [random.choice((*NOUNS, *ADJECTIVES)) for _ in range(random.randint(2, min(8, longest)))]
    return Example(f"Reverse: {' '.join(given)}", " ".join(reversed(given)))


def count(random: Random, longest: int) -> Example:
    first = random.randint(0, 30)
    last = first + random.randint(1, min(12, longest))
    if random.random() < 0.3:
        return Example(f"Count down from {last} to {first}", " ".join(map(str, range(last, first - 1, -1))))
    return Example(f"Count from {first} to {last}", " ".join(map(str, range(first, last + 1))))


def recall(random: Random, longest: int) -> Example:
    """A question about one of several facts given in the prompt."""
    owners = random.sample(NAMES, k=random.randint(1, min(8, max(1, longest // 8))))
    things = {owner: f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}" for owner in owners}
    asked = random.choice(owners)
    told = " ".join(f"{owner} has {thing}." for owner, thing in things.items())
    return Example(f"{told} What does {asked} have?", f"{asked} has {things[asked]}.")


def capital(random: Random, longest: int) -> Example:
    del longest
    country, city = random.choice(tuple(CAPITALS.items()))
    return Example(f"What is the capital of {country}?", f"The capital of {country} is {city}.")


def fact(random: Random, longest: int) -> Example:
    del longest
    return Example(*random.choice(tuple(FACTS.items())))


def passage(random: Random, longest: int) -> Example:
    del longest
    return Example("", random.choice(PASSAGES))


def refrain(random: Random, longest: int) -> Example:
    """Plain text that says the same thing again and again."""
    line = text(random, max(2, longest // 4)).rstrip(".?!")
    return Example("", ". ".join([line] * random.randint(2, 4)) + ".")


# Share of each kind in the training mix.
KINDS: tuple[tuple[Callable[[Random, int], Example], float], ...] = (
    (repeat, 5.0),
    (echo, 5.0),
    (reverse, 2.0),
    (count, 1.5),
    (recall, 3.0),
    (capital, 1.0),
    (fact, 1.5),
    (passage, 0.7),
    (refrain, 1.5),
)


def example(random: Random, longest: int) -> Example:
    """One exchange of the mix; `longest` bounds its free text, in words."""
    makers, weights = zip(*KINDS, strict=True)
    maker: Callable[[Random, int], Example] = random.choices(makers, weights=weights)[0]
    return maker(random, longest)
