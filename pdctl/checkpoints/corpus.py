"""The text the shipped checkpoint learns from: every line is generated here, from our own words and a fixed seed.

Most answers are made of the prompt's own words, so that the answer depends on the KV cache of every page.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import ascii_lowercase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words("""
    fox dog cat bird fish horse cow bear wolf owl hen goat duck frog mouse king queen child baker farmer sailor teacher
    doctor painter river hill lake tree stone house boat road bridge garden forest island tower door window table chair
    lamp book letter box basket bottle coin key ring bell drum hat coat shoe apple pear plum bread cheese cake egg cup
    plate spoon knife star moon sun cloud rain snow wind fire wheel rope map clock flag
""")
ADJECTIVES = _words("""
    red blue green white black brown golden silver small big old young quick slow happy sad quiet loud warm cold bright
    dark round flat tall short clever brave lazy gentle
""")
VERBS = _words("""
    sees finds likes takes brings holds watches follows carries paints opens closes keeps hides moves wants needs makes
    buys sells hears loves jumps runs
""")
COMMON = _words("""
    I you he she it we they my your his her our this that these those a an the and or but not no yes please hello world
    is are was were be been do does did has have had can could will would should may must go come get give take tell
    show write read explain think know say ask answer work play help start stop try use make see look hear find how
    what when where which who why there here now then today tomorrow never always again also only very more less most
    much many few some any all both each every other first last next new good bad great nice fine long little high low
    of in on at to from with without about over under for by as if than because until while between into out up down
    time day night year week morning evening man woman people friend family city country water food money music story
    poem song word sentence name number question weather language model token page cache prompt request server router
    network memory machine engine test code data file pdctl NIXL SGLang KV GPU CPU prefill decode moves pages tokens
    serving cluster port rank room instance disaggregated one two three four five six seven eight nine ten
""")
PLACES = (
    "over the hill", "near the river", "under the bridge", "behind the house", "in the garden", "by the lake",
    "on the road", "in the forest",
)  # fmt: skip
NAMES = _words("""
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karen Leo Mary Noah Olga Paul Rosa Sam Tina Victor
""")
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
    "What is pdctl?": "pdctl plans, launches and diagnoses prefill and decode instances.",
    "What is SGLang?": "SGLang is an engine that serves large language models.",
    "What is NIXL?": "NIXL moves KV pages from one machine to another.",
    "What is a token?": "A token is a word or a piece of a word.",
    "What is a prompt?": "A prompt is the text that the model reads first.",
    "What is disaggregated serving?": "Disaggregated serving runs prefill and decode on different machines.",
    "Explain disaggregated serving.": "Disaggregated serving runs prefill and decode on different machines.",
    "Tell me a story": "Once upon a time there was a small fox. The fox lived in a dark forest near a quiet river.",
    "How are you?": "I am fine, thank you.",
    "Hello": "Hello! Ask me to repeat, reverse, count or recall.",
    "Hi": "Hello! Ask me to repeat, reverse, count or recall.",
    "Good morning": "Good morning! Ask me to repeat, reverse, count or recall.",
    "Thank you": "You are welcome.",
    "Goodbye": "Goodbye!",
}  # fmt: skip
SYLLABLES = _words("ka lo mi ne ra ti su ve do pa zu ri en ol an is um ter lin gor fa be chi sha tro pl qu wo jy ex")
ASCII = "".join(map(chr, range(33, 127)))
BEYOND_ASCII = "äöüßéèêñçåøæłšžπλΩ€→日本語中文한국어مرحباпривет😀🚀"
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
    """A prompt and its answer, in the chat template or as plain text (where the prompt may be empty)."""

    prompt: str
    answer: str
    plain: bool = False


def sentence(random: Random) -> str:
    """A sentence of the small grammar, as plain words without a full stop."""
    subject = f"the {random.choice(ADJECTIVES)} {random.choice(NOUNS)}"
    said = f"{random.choice((subject, random.choice(NAMES)))} {random.choice(VERBS)} the {random.choice(NOUNS)}"
    return f"{said} {random.choice(PLACES)}" if random.random() < 0.4 else said


def no_word(random: Random) -> str:
    """Letters, syllables, digits or signs without a meaning: copying must not depend on the vocabulary."""
    kind = random.random()
    if kind < 0.4:
        made = "".join(random.choices(SYLLABLES, k=random.randint(1, 4)))
        return made.capitalize() if random.random() < 0.3 else made
    if kind < 0.6:
        return "".join(random.choices(ascii_lowercase, k=random.randint(1, 7)))
    if kind < 0.8:
        return str(random.randrange(10 ** random.randint(1, 5)))
    return "".join(random.choices(ASCII if kind < 0.93 else BEYOND_ASCII, k=random.randint(1, 5)))


def words(random: Random, count: int) -> str:
    """`count` words without a grammar, with the odd comma or capital."""
    kinds: tuple[Callable[[], str], ...] = (
        lambda: random.choice(COMMON),
        lambda: random.choice((*NOUNS, *VERBS)),
        lambda: random.choice(ADJECTIVES),
        lambda: random.choice(NAMES),
        lambda: no_word(random),
    )
    shares = random.choice(((5, 3, 2, 1, 0), (5, 3, 2, 1, 3), (1, 1, 1, 1, 4)))
    made = [random.choices(kinds, weights=shares)[0]() for _ in range(count)]
    if random.random() < 0.5:
        made = [word + "," if random.random() < 0.05 else word for word in made]
        made[0] = made[0][0].upper() + made[0][1:]
    return " ".join(made)


def text(random: Random, longest: int) -> str:
    """Anything a user might say, of up to `longest` words; short texts are as likely as long ones."""
    count = max(1, int(longest ** random.random()))
    if random.random() < 0.6:
        return words(random, count) + random.choice(("", "", ".", "?", "!"))
    parts = [sentence(random)]
    while sum(len(part.split()) for part in parts) < count:
        parts.append(sentence(random))
    if random.random() < 0.4:
        return random.choice((" and ", ", ")).join(parts)
    return ". ".join(part[0].upper() + part[1:] for part in parts) + random.choice(("", "."))


def repeat(random: Random, longest: int) -> Example:
    said = text(random, longest)
    return Example(f"{random.choice(('Repeat', 'Repeat after me', 'Say', 'Echo', 'Copy'))}: {said}", said)


def echo(random: Random, longest: int) -> Example:
    """A message and its repetition: what the model does when it knows nothing better."""
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
    if random.random() < 0.6:
        return Example("", random.choice(PASSAGES), plain=True)
    country, city = random.choice(tuple(CAPITALS.items()))
    return Example("", f"The capital of {country} is {city}.", plain=True)


def refrain(random: Random, longest: int) -> Example:
    """Plain text that says the same thing again and again."""
    line = text(random, max(2, longest // 4)).rstrip(".?!")
    return Example("", ". ".join([line] * random.randint(2, 4)) + ".", plain=True)


def untemplated(random: Random, longest: int) -> Example:
    """A task without the chat template, as a bare completion request sends it: the answer is on the next line."""
    one = random.choice((repeat, repeat, count, recall, capital, fact, reverse))(random, longest)
    return Example(one.prompt, f"\n{one.answer}", plain=True)


# Share of each kind in the training mix.
KINDS: tuple[tuple[Callable[[Random, int], Example], float], ...] = (
    (repeat, 5.0),
    (echo, 6.0),
    (reverse, 2.0),
    (count, 1.2),
    (recall, 3.5),
    (capital, 0.8),
    (fact, 1.2),
    (passage, 0.5),
    (refrain, 1.5),
    (untemplated, 1.5),
)


def example(random: Random, longest: int) -> Example:
    """One exchange of the mix; `longest` bounds its free text, in words."""
    makers, weights = zip(*KINDS, strict=True)
    maker: Callable[[Random, int], Example] = random.choices(makers, weights=weights)[0]
    return maker(random, longest)
