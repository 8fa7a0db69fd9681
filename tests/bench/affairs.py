"""Long chats with an assistant, written by rules: people come back over months with their affairs.

What a message says is put together from facts of several affairs at a time (a journey, a kitchen, a
program, a thesis …), from small talk and from questions; facts change on the way, and some wishes
hold for good. Answers are long and say little that was not said: their prose is Python's own
documentation, with a few sentences that take up what was asked. Each fact is a probe: a question,
the answer, and the message that it stands in.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pydoc_data.topics import topics

from agent.messages import ChatMessage, assistant_message, user_message
from agent.tokens import estimate_message


def _words(text: str) -> list[str]:
    return text.split()


_FIRST = _words("""
    Amelie Bogdan Carmen Dario Elif Farid Greta Hiro Ingrid Jovan Katarzyna Leandro Mireille
    Nadia Oskar Priya Quentin Rosalind Santiago Tomasz Ursula Viktor Wanjiru Ximena Yusuf Zofia
    Anneke Bruno Chiara Deepak Eszter Fiona Goran Halima Isidro Juliette Kwame Lucinda Matteo
    Noor""")
_LAST = _words("""
    Abernathy Borowski Castellanos Dimitrov Eriksen Fontaine Grünwald Hakimi Ivanova Jankowski
    Kowalczyk Lindqvist Moreau Nakagawa Okonkwo Petrov Quispe Rasmussen Sandoval Takahashi
    Umarov Vasquez Whitcombe Xavier Yamamoto Zielinski Ashdown Brightwater Calloway Drummond""")
_PLACES = _words("""
    Lisbon Ghent Kraków Tbilisi Valparaíso Bergen Nagoya Ljubljana Palermo Asheville Galway
    Utrecht Porto Tallinn Cusco Marrakesh Graz Bilbao Reykjavik Trieste Hobart Innsbruck Zagreb
    Leiden""")
_COLOURS = _words("teal ochre maroon ivory indigo walnut slate copper olive coral")
_MONTHS = _words("""
    January February March April May June July August September October November December""")

# Of each affair: what it is called, its things, what is done with them, what one asks about it.
_AFFAIRS: dict[str, tuple[str, str, str]] = {
    "journey": (
        (
            "hostel ferry itinerary passport suitcase rental car museum pass vineyard harbour "
            "lighthouse tram ticket travel insurance guidebook campsite sleeper train airport "
            "shuttle"
        ),
        "reserve cancel compare extend share print",
        "packing layovers visas tipping altitude jet lag",
    ),
    "kitchen": (
        (
            "countertop plumber backsplash induction hob dishwasher drawer runner pantry "
            "shelf electrician floor tile sink cabinet door skylight extractor worktop sample "
            "contractor's quote"
        ),
        "install measure return repaint order replace",
        "grouting ventilation load-bearing walls permits resale value",
    ),
    "program": (
        (
            "login endpoint migration script background worker cache layer search index test "
            "suite billing module staging server rate limiter export job webhook feature flag "
            "session store"
        ),
        "refactor deploy profile document rewrite mock",
        "idempotency connection pools flaky tests pagination caching headers",
    ),
    "running": (
        (
            "knee brace interval session long run heart-rate strap physiotherapist foam "
            "roller trail shoes half marathon tempo pace hydration belt stretching routine "
            "finish time"
        ),
        "log shorten repeat skip plan track",
        "cadence carbohydrate loading overtraining hill repeats recovery",
    ),
    "wedding": (
        (
            "florist seating chart string quartet caterer invitation list venue deposit "
            "rehearsal dinner photographer cake tasting guest book dress fitting officiant "
            "shuttle bus"
        ),
        "confirm postpone finalise sketch delegate downsize",
        "speeches allergies plus-ones etiquette weather backup",
    ),
    "thesis": (
        (
            "literature review supervisor interview transcript methods chapter coding scheme "
            "pilot survey ethics form citation style defence date appendix footnote sample "
            "frame"
        ),
        "submit revise outline translate annotate proofread",
        "saturation reliability paraphrasing sampling bias word limits",
    ),
    "garden": (
        (
            "raised bed compost heap quince tree drip line greenhouse seed packet rain barrel "
            "trellis slug trap beehive lavender hedge tool shed"
        ),
        "prune transplant water label mulch fence",
        "frost dates soil acidity pollination companion planting aphids",
    ),
    "money": (
        (
            "savings account mortgage offer pension letter tax return emergency fund index "
            "fund invoice electricity bill car loan child allowance spreadsheet standing "
            "order"
        ),
        "transfer renegotiate forecast split cancel audit",
        "compound interest deductions inflation credit scores diversification",
    ),
    "dog": (
        (
            "vet appointment harness crate puppy class grain-free kibble tick collar "
            "microchip dog sitter thyroid tablet grooming brush recall whistle adoption paper"
        ),
        "book refill train weigh register bathe",
        "separation anxiety vaccines leash pulling teething nutrition",
    ),
    "music": (
        (
            "cello bow audition piece recording interface metronome rehearsal room sheet "
            "music setlist choir scarf vocal warm-up festival slot microphone stand demo "
            "track"
        ),
        "rehearse transpose mix memorise tune upload",
        "intonation stage fright sight reading royalties acoustics",
    ),
    "job": (
        (
            "cover letter recruiter salary band portfolio page reference call second "
            "interview notice period job offer relocation package probation review contract "
            "clause commute"
        ),
        "negotiate decline update follow up rehearse compare",
        "career gaps remote work equity burnout onboarding",
    ),
    "game": (
        (
            "prototype deck victory point rulebook draft playtest group resource token hex "
            "board printer campaign page stretch goal miniature sculpt box insert expansion "
            "idea"
        ),
        "balance simplify reprint playtest price illustrate",
        "randomness player interaction licensing shipping theme",
    ),
}

_OPENERS = (
    "Quick update from my side.", "Right, back again.", "Hope you're well!", "Long day.", "So.",
    "Okay, new topic.", "Me again :)", "Sorry for the silence.", "I had some time tonight.",
    "It's been raining all week.", "Coffee in hand, let's go.", "Morning!", "Still with me?",
    "Let me think out loud for a minute.", "The kids are finally asleep.", "One thing at a time.",
    "Bear with me, this is a bit messy.", "Not sure where to begin.", "Thanks for last time.",
)  # fmt: skip
_CLOSERS = (
    "What would you do?", "Does that make sense?", "Any thoughts?", "How should I go about it?",
    "Could you walk me through the options?", "Is there anything I'm overlooking?",
    "Please explain it as if I were new to this.", "Tell me where the risks are.",
    "What's the usual approach?", "Can you give me a checklist?", "How do others handle that?",
    "Would you mind comparing the alternatives?", "Where do I start?", "Is that realistic?",
)  # fmt: skip
_WISHES = (
    "Oh, and {always} put prices in {unit} when you answer.",
    "By the way, {always} keep code samples in {lang}, that's what we run here.",
    "One wish: {always} end with a short summary for {name}, who only reads the last lines.",
    "Please {always} call the project by its code name, {code}.",
    "When dates come up, {always} write them the {nation} way.",
    "I can't eat {food}, so {always} leave it out of anything you suggest.",
)
_ALWAYS = ("always", "from now on", "every time,", "as a rule,", "in all your answers")


@dataclass(frozen=True, slots=True)
class Told:
    """A sentence with a fact in it, and what is asked about that."""

    sentence: str
    question: str
    answer: str


@dataclass(slots=True)
class Chat:
    """Messages with what is asked about them: (question, answer, positions of the evidence)."""

    messages: list[ChatMessage] = field(default_factory=list)
    probes: list[tuple[str, str, list[int]]] = field(default_factory=list)
    instructions: list[int] = field(default_factory=list)


@cache
def _prose() -> tuple[list[str], ...]:
    """Return the paragraphs of Python's documentation, each as its sentences."""
    found = []
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            text = " ".join(paragraph.split())
            parts = [part + "." for part in text.split(". ") if 40 < len(part) < 260]
            if len(parts) >= 2 and text.isascii():
                found.append(parts)
    return tuple(found)


class Person:
    """Somebody with affairs, whose facts may change."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.affairs = rng.sample(sorted(_AFFAIRS), 6)
        self.values: dict[tuple[str, str], str] = {}

    def thing(self, affair: str) -> str:
        words = _AFFAIRS[affair][0].split()
        at = self.rng.randrange(len(words) - 1)
        return self.rng.choice((words[at], f"{words[at]} {words[at + 1]}"))

    def name(self) -> str:
        return f"{self.rng.choice(_FIRST)} {self.rng.choice(_LAST)}"

    def day(self) -> str:
        return f"{self.rng.choice(_MONTHS)} {self.rng.randrange(1, 29)}"

    def amount(self) -> str:
        rng = self.rng
        number = rng.choice((rng.randrange(12, 99), rng.randrange(100, 9900)))
        return rng.choice((
            f"{number:,} euros",
            f"${number:,}",
            f"{number} hours",
            f"{number} pages",
        ))

    def told(self, affair: str) -> Told:
        """Return a fact of an affair in words of its own."""
        return self.rng.choice(_MAKERS)(self, affair)


Maker = Callable[[Person, str], Told]


def _amount(person: Person, affair: str) -> Told:
    rng, thing, other = person.rng, person.thing(affair), person.thing(affair)
    value = person.amount()
    how = rng.choice(("all in", "give or take", "before the discount"))
    before = person.values.get((affair, thing))
    person.values[affair, thing] = value
    if before and before != value:
        said = rng.choice((
            f"Scratch what I said about the {thing}: it will be {value}, not {before} after all.",
            f"The {thing} went from {before} to {value} once they saw the {other}.",
            f"Bad news on the {thing}, we are at {value} now.",
        ))
        return Told(said, f"How much is the {thing} now?", value)
    said = rng.choice((
        f"For the {thing} they quoted me {value}, which surprised {person.name()} as much as me.",
        f"I put aside {value} for the {thing} because the {other} ate up the rest.",
        f"It looks like {value} is what the {thing} comes to, {how}.",
        f"We worked out that the {thing} needs {value} if the {other} stays as it is.",
        f"Turns out my cousin paid {value} for a {thing} just like ours.",
    ))
    return Told(said, f"What about the {thing}?", value)


def _date(person: Person, affair: str) -> Told:
    rng, thing = person.rng, person.thing(affair)
    value, name = person.day(), person.name()
    verb = rng.choice(_AFFAIRS[affair][1].split())
    said = rng.choice((
        f"{name} wants to {verb} the {thing} on {value} at the latest.",
        f"Since {value} the {thing} has been in {rng.choice(_PLACES)} without anyone to {verb} it.",
        f"The people from {rng.choice(_PLACES)} can only {verb} the {thing} after {value}.",
        f"If nothing gets in the way I'd {verb} the {thing} around {value}.",
        f"{value} is when {name} and I have to {verb} the {thing}.",
    ))
    return Told(said, f"When does the {thing} happen?", value)


def _person(person: Person, affair: str) -> Told:
    rng, thing, name = person.rng, person.thing(affair), person.name()
    place = rng.choice(_PLACES)
    said = rng.choice((
        f"The one who knows about the {thing} is {name}, an old colleague from {place}.",
        f"I met {name} in {place}, and she offered to look at the {thing}.",
        f"{name} took over the {thing} when the last one quit.",
        f"My neighbour {name} swears by a {thing} from a small shop in {place}.",
        f"{name} will be in charge of the {thing}, whatever my brother says.",
    ))
    return Told(said, f"Who deals with the {thing}?", name)


def _choice(person: Person, affair: str) -> Told:
    rng, thing, other = person.rng, person.thing(affair), person.thing(affair)
    colour = rng.choice(_COLOURS)
    why = rng.choice((
        "the other one squeaked", "it fits the stairs", "my mother hates beige", "it was in stock",
        "nobody else would carry it", "the reviews were awful elsewhere", "it can be washed",
    ))  # fmt: skip
    said = rng.choice((
        f"In the end it's the {colour} {thing}, mostly since {why}.",
        f"We took the {colour} one for the {thing}: {why}.",
        f"After a long talk about the {other} we are going for a {colour} {thing} as {why}.",
    ))
    return Told(said, f"Which {thing} was taken and why?", f"{colour}, {why}")


def _trouble(person: Person, affair: str) -> Told:
    rng, thing = person.rng, person.thing(affair)
    cause = rng.choice((
        "a loose gasket", "an expired certificate", "the wrong adapter", "a typo in the address",
        "mould behind the panel", "a missing signature", "swollen hinges", "a duplicated entry",
        "the summer timetable", "an off-by-one in the counter", "a dead battery",
    ))  # fmt: skip
    said = rng.choice((
        f"The {thing} gave up twice this week and the reason was {cause}.",
        f"Somebody finally found out why the {thing} kept failing, namely {cause}.",
        f"It was {cause} that held up the {thing} for {rng.randrange(2, 19)} days.",
    ))
    return Told(said, f"What was wrong with the {thing}?", cause)


_MAKERS: tuple[Maker, ...] = (_amount, _amount, _date, _date, _person, _choice, _trouble)


def written(tokens: int, seed: int) -> Chat:
    """Return a chat of about so many tokens."""
    rng = random.Random(seed)  # noqa: S311 - the same on every run
    person, chat = Person(rng), Chat()
    chat.messages.append(ChatMessage(role="system", content="You are a helpful assistant."))
    size = 0
    while size < tokens:
        affair = rng.choice(person.affairs)
        said, told = _message(person, affair)
        place = len(chat.messages)
        chat.probes += [(each.question, each.answer, [place]) for each in told]
        if rng.random() < 0.04:
            said.insert(rng.randrange(1, len(said)), _wish(person))
            chat.instructions.append(place)
        chat.messages.append(user_message(_laid_out(rng, said)))
        answer, own = _answer(person, affair, [each.sentence for each in told])
        chat.probes += [(each.question, each.answer, [place + 1]) for each in own]
        chat.messages.append(assistant_message(answer))
        size += sum(map(estimate_message, chat.messages[-2:]))
    return chat


def _message(person: Person, affair: str) -> tuple[list[str], list[Told]]:
    rng = person.rng
    things, subject = person.thing(affair), rng.choice(_AFFAIRS[affair][2].split())
    asides = [
        f"I keep going back and forth about {subject} and the {things}.",
        f"People keep telling me {subject} is not a big deal, but I'm not convinced.",
        f"My plan so far: look at the {person.thing(affair)}, then worry about {subject}.",
        f"I read a long thread about {subject} yesterday and came away with more questions.",
        f"We did try to {rng.choice(_AFFAIRS[affair][1].split())} the {things} once, years ago.",
        f"To be honest the {things} is what keeps me up at night.",
    ]
    told = [person.told(affair) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    if rng.random() < 0.15:
        told.append(person.told(rng.choice(person.affairs)))
    said = [each.sentence for each in told] + rng.sample(asides, rng.randrange(1, 4))
    rng.shuffle(said)
    if rng.random() < 0.5:
        said.insert(0, rng.choice(_OPENERS))
    if rng.random() < 0.8:
        said.append(rng.choice(_CLOSERS))
    return said, told


def _wish(person: Person) -> str:
    rng = person.rng
    return rng.choice(_WISHES).format(
        always=rng.choice(_ALWAYS),
        unit=rng.choice(("Swiss francs", "zloty", "pounds sterling")),
        lang=rng.choice(("Elixir", "Kotlin", "Fortran", "Julia")),
        name=rng.choice(_FIRST),
        code=rng.choice(("Bluebird", "Tamarind", "Northlight", "Quokka")),
        nation=rng.choice(("Swedish", "Japanese", "German")),
        food=rng.choice(("hazelnuts", "shellfish", "coriander", "buckwheat")),
    )


def _laid_out(rng: random.Random, said: Sequence[str]) -> str:
    """Return sentences as a text: in one line, in paragraphs, in small letters, or as a list."""
    form = rng.random()
    if form < 0.6:
        return " ".join(said)
    if form < 0.8:
        middle = len(said) // 2
        return f"{' '.join(said[:middle])}\n\n{' '.join(said[middle:])}"
    if form < 0.9:
        return " ".join(said).lower()
    return "\n".join([said[0], *(f"- {each}" for each in said[1:-1]), said[-1]])


def _answer(person: Person, affair: str, asked: Sequence[str]) -> tuple[str, list[Told]]:
    """Return a long answer, and the facts that only it holds."""
    rng, own = person.rng, []
    parts = [rng.choice((
        "Great question! Let me break this down for you.", "That sounds like a lot to juggle.",
        "Thanks for the details, that helps.", "Happy to help with that.", "Good thinking.",
    ))]  # fmt: skip
    if rng.random() < 0.4:
        parts.append(f"You mentioned: {rng.choice(asked)}")
    for number in range(1, rng.randrange(4, 9)):
        body = rng.choice(_prose())
        if rng.random() < 0.05:
            told = person.told(affair)
            own.append(told)
            body = [*body[:1], told.sentence, *body[1:]]
        title = person.thing(affair).capitalize()
        style = rng.random()
        if style < 0.4:
            parts.append(f"{number}. **{title}**: {' '.join(body)}")
        elif style < 0.7:
            parts.append(f"### {title}\n" + "\n".join(f"- {each}" for each in body))
        else:
            parts.append(" ".join(body))
    parts.append(rng.choice((
        "Let me know if you'd like me to go deeper on any of these points!",
        "Would you like a template for that?", "I hope this helps. Good luck!",
        "Shall I draft the next step for you?",
    )))  # fmt: skip
    return "\n\n".join(parts), own
