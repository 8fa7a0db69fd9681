"""300 real answers of models on every platform; and texts that nobody would write."""

import pytest
from hypothesis import example, given, settings

from tests.support.answers import longest_answers
from tests.support.renderers import DISCORD, HOSTILE, LONG, PLATFORMS, SLOW, Platform
from tests.support.shared import SHARED
from tests.support.shown_text import COMMONMARK, bare
from tests.support.thorough import amount, sampled

every_platform = pytest.mark.parametrize("platform", PLATFORMS, ids=lambda it: it.name)


def check(platform: Platform, markdown: str) -> list[str]:
    """Return the payloads, which keep the limits, are complete and call nobody."""
    payloads = platform.render(markdown)
    for payload in payloads:
        assert 0 < platform.size(payload) <= platform.limit
        assert platform.faults(payload) == []
    shown, expected = platform.shown(payloads), platform.expected(markdown)
    if expected:
        assert shown == expected
    else:
        # What markdown would swallow is shown as it is; of rules no text is left to compare.
        assert shown in {bare(markdown), "", "…"}
    return payloads


if SHARED is not None:
    ANSWERS = longest_answers(SHARED)

    @every_platform
    def test_real_answers(platform: Platform) -> None:
        """Each is complete, within the limits, well-formed, and calls nobody."""
        assert len(ANSWERS) == 300
        for answer in ANSWERS[:: amount(5, 1)]:
            payloads = check(platform, answer)
            assert platform.shown(payloads) == platform.text_of(COMMONMARK.parse(answer))

    @every_platform
    def test_previews_of_real_answers(platform: Platform) -> None:
        """However far an answer has come, its preview is one message and calls nobody."""
        for answer in ANSWERS[:: amount(50, 10)]:
            for end in range(0, len(answer), len(answer) // 5):
                shown = platform.preview_text(answer[:end])
                assert shown is None or shown.endswith(" …")
                assert len(shown or "") <= platform.limit


@every_platform
@settings(max_examples=150)
@given(markdown=HOSTILE)
@example(markdown="a ahttps://e.org/a_b_ <**b**https://e.org/a_b_")
@example(markdown="~~`~~`c`~~ ~~\\~~~~ *[**t**](https://e.org)`c`[**t**](https://e.org)**")
@example(markdown="**word [t](https://e.org)**[t](https://e.org) [t](https://e.org)](7)")
@example(
    markdown="> > + a\n\n7) # b\n\n- > c\n  > ```\n  > d\n\n[<https://e.org/a>](https://e.org)"
)
def test_hostile_signs(platform: Platform, markdown: str) -> None:
    """No sign becomes a format by accident, and none is lost."""
    check(platform, markdown)


@every_platform
@settings(max_examples=40)
@given(markdown=LONG)
@example(markdown="https://e.org/_a*" * 400)
@example(markdown="[a](https://e.org) [ **a**](https://e.org)**a** " + "## x#&#32;\nword " * 200)
def test_long_texts(platform: Platform, markdown: str) -> None:
    """Whatever is split stays complete, and each part stands on its own."""
    check(platform, markdown)


@pytest.mark.untraced
@pytest.mark.parametrize("name", sampled([*SLOW], 3))
def test_texts_that_make_parsers_slow(name: str) -> None:
    """100,000 hostile characters are rendered within the limits."""
    payloads = DISCORD.render(SLOW[name])
    assert all(DISCORD.size(payload) <= DISCORD.limit for payload in payloads)
