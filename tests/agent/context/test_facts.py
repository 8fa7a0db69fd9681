"""Facts: which values are told, of what, and what is none."""

import pytest

from agent.context.facts import MOST_OF_ONE, facts_in


@pytest.mark.parametrize(
    ("text", "subject", "value", "before"),
    [
        ("The deadline is May 3.", "deadline", "May 3", ""),
        ("Our budget is now 5,000 euros, by the way.", "budget", "5,000 euros", ""),
        ("We moved the launch from May 3 to June 10.", "launch", "June 10", "May 3"),
        ("The meeting was pushed back to Thursday 14:30 because Ann is ill.", "meeting",
         "Thursday 14:30", ""),
        ("My name is Johanna.", "name", "Johanna", ""),
        ("I've moved to Berlin.", "home", "Berlin", ""),
        ("I now live in New York.", "home", "New York", ""),
        ("I work at Siemens.", "work", "Siemens", ""),
        ("Ich wohne jetzt in Hamburg.", "home", "Hamburg", ""),
        ("Unser Termin wurde von Montag auf Dienstag verschoben.", "termin", "Dienstag", "Montag"),
        ("Notre budget est maintenant 300 euros.", "budget", "300 euros", ""),
        ("They raised our budget from 12,000 to 15,000 euros.", "budget", "15,000 euros", "12,000"),
        ("We had to change the venue to Bellevue.", "venue", "Bellevue", ""),
        ("From April on my salary will be 3,700 euros.", "salary", "3,700 euros", ""),
        ("I sold it, my new car is a Renault Zoe.", "car", "Renault Zoe", ""),
        ("Meine Miete beträgt 640 Euro.", "miete", "640 Euro", ""),
        ("Mi vuelo es el 3 de mayo.", "vuelo", "3 de mayo", ""),
        ("Я теперь живу в Берлине.", "home", "Берлине", ""),
        ("我住在北京", "home", "北京", ""),
    ],
)  # fmt: skip
def test_a_value_with_its_subject(text: str, subject: str, value: str, before: str) -> None:
    """Articles and "now" do not belong to it: the next value of the same has the same subject."""
    [fact] = facts_in(text)
    assert (fact.subject, fact.value, fact.before) == (subject, value, before)
    assert fact.text == text


@pytest.mark.parametrize(
    "text",
    [
        "What is the deadline?",
        "The problem is that Python crashes.",
        "If the deadline is May 3, we are late.",
        "The deadline is close.",
        "The problem is a Python crash.",
        "We had to change the plan to be safe.",
        "> The deadline is May 3.",
        "It was a nice day.",
        "My password is Hunter2.",
        "The PIN is 4711.",
        "",
        "x" * 7_000,
    ],
)
def test_what_tells_no_value(text: str) -> None:
    """Questions, conditions, quotes, and what cannot be told from other values."""
    assert facts_in(text) == []


def test_a_list_of_values_is_cut() -> None:
    """A document is nobody's own facts."""
    text = "\n".join(f"- The price of part{n} is {n} euros" for n in range(20))
    assert len(facts_in(text)) == MOST_OF_ONE
