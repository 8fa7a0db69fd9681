"""Redaction of texts of any size: what is masked, what is left alone, and how fast."""

import json
import textwrap
from base64 import b16encode, b64encode, urlsafe_b64encode
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.safety.redaction import (
    MASK,
    Redactor,
    is_telling,
    masked_assignments,
    printable,
)
from tests.support.effort import effort

BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n{BODY}\nabc=\n-----END RSA PRIVATE KEY-----"
PGP = f"""-----BEGIN PGP PRIVATE KEY BLOCK-----
Version: GnuPG v2

{BODY}
=AbCd
-----END PGP PRIVATE KEY BLOCK-----"""
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
WHOLE = [
    "123456789:AAE-abcdefghijklmnopqrstuvwxyz_0123",
    "123456789%3AAAE-abcdefghijklmnopqrstuvwxyz_0123",
    "sk-ant-api03-abcdefghij",
    "sk-proj-abcdefghijklmnop",
    "xoxb-123456789012-abcdef",
    "xapp-1-A0123456789-abc",
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_" + "a1B2" * 9,
    "ghs_" + "a1B2" * 9,
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    JWT,
    PEM,
    PEM.replace("\n", "\\n"),
    PEM.partition("\nabc=")[0],
    PEM.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0AF\n\n", 1),
    PGP,
]
WITHIN = [
    ("Authorization: Bearer abcdefgh123", f"Authorization: Bearer {MASK}"),
    ("authorization: bearer abcdefgh123", f"authorization: bearer {MASK}"),
    ("BEARER abcdefgh123", f"BEARER {MASK}"),
    ("postgresql://me:pw@db/x", f"postgresql://{MASK}@db/x"),
    ("https://u:sk-ant-api03-abcdefghij@host", f"https://{MASK}@host"),
]
ORDINARY = [
    "task-turn_finished_something and disk-abcdefghijklmnop",
    "12:30, telegram:default:123456789, a@b.org",
    "see https://example.org:8080/a?b=c@d and the bearer of news",
    "AKIA, MAKIAIOSFODNN7EXAMPLE, AKIAIOSFODNN7EXAMPLEX",
    "ghp_short, eyJhbGciOiJIUzI1NiJ9 alone, eyJ.eyJ.x",
    'if "-----BEGIN PRIVATE KEY-----" in text:\n    pass',
    "-----BEGIN PUBLIC KEY-----\n" + BODY,
    "密码没有 😀",
]


class TestText:
    @pytest.mark.parametrize("secret", WHOLE)
    def test_a_credential_is_masked_as_a_whole(self, secret: str) -> None:
        """Nothing of it stays, and nothing around it goes."""
        assert Redactor().text(f"a {secret}, b") == f"a {MASK}, b"

    @pytest.mark.parametrize(("text", "masked"), WITHIN)
    def test_only_the_credential_goes(self, text: str, masked: str) -> None:
        """Scheme, host and header stay readable."""
        assert Redactor().text(text) == masked

    @pytest.mark.parametrize("text", ORDINARY)
    def test_ordinary_text_is_left_alone(self, text: str) -> None:
        """What only resembles a credential stays."""
        assert Redactor().text(text) == text

    def test_every_occurrence_is_masked(self) -> None:
        """Also in long text, wherever they stand."""
        text = "; ".join(WHOLE * 20)
        assert Redactor().text(text) == "; ".join([MASK] * len(WHOLE) * 20)

    @given(st.sampled_from(WHOLE), st.text(max_size=20), st.text(max_size=20))
    def test_masking_twice_changes_nothing_more(self, secret: str, one: str, two: str) -> None:
        """Summaries are masked again when they are updated."""
        redactor = Redactor()
        once = redactor.text(f"{one}{secret}{two}")
        assert redactor.text(once) == once


class TestSuspects:
    @pytest.mark.parametrize("text", [*WHOLE, *(text for text, _ in WITHIN)])
    def test_the_json_of_a_credential_is_suspected(self, text: str) -> None:
        """Whatever would be masked in the value."""
        assert Redactor().suspects(orjson.dumps({"a": f"\n\t{text}"}).decode())

    def test_an_ordinary_line_is_not(self) -> None:
        """Addresses without a password do not cost a second look."""
        assert not Redactor(["hunter22"]).suspects('{"url":"https://example.org/a","n":12}')


class TestSpeed:
    @pytest.mark.parametrize(
        "bait",
        [
            *(
                "eyJ",
                "-eyJaaaaaaaa",
                "eyJ.",
                "sk-",
                "AKIA",
                "1234567:",
                "123456%3A",
                "://",
                "://a:",
            ),
            *("github_pat_", "xox", "xoxa-", "Bearer ", "-----BEGIN RSA PRIVATE KEY-----\n"),
            *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----a: b\n", "://a:aaaaaaaa", "ghp_", "\\n"),
            *("-", "_", "-sk-", "gha_"),
        ],
    )
    def test_bait_does_not_slow_it_down(self, bait: str) -> None:
        """What is masked is written by strangers: every pattern stays linear."""
        text = bait * (400_000 // len(bait))
        assert effort(lambda: Redactor().text(text)) < 150


class TestAssignments:
    @pytest.mark.parametrize(
        ("text", "masked"),
        [
            ("password=hunter22x", f"password={MASK}"),
            ("the DB_PASSWORD: `P@ssw0rd1`.", f"the DB_PASSWORD: `{MASK}`."),
            ('"api_key": "ab12cd34ef"', f'"api_key": "{MASK}"'),
            ("**Token**: 9f8e7d6c5b", f"**Token**: {MASK}"),
            ("client_secret => a1b2c3d4e5, next", f"client_secret => {MASK}, next"),
        ],
    )
    def test_a_named_value_is_masked(self, text: str, masked: str) -> None:
        """However the name is written."""
        assert masked_assignments(text) == masked

    @pytest.mark.parametrize(
        "text",
        [
            *("password: required", "token budget: 12000tokens", "max_tokens: 81920x1"),
            *("api_key=os.environ['KEY1']", "secret: 12345678", "the token is abc12345"),
            *("password: see /etc/app1/passwd", "token: https://x.org/a1b2c3", "secret: ~/k1/key2"),
            f"password={MASK}",
        ],
    )
    def test_ordinary_sentences_are_left_alone(self, text: str) -> None:
        """Words, numbers, code, paths and addresses are no secrets."""
        assert masked_assignments(text) == text


def test_secrets_are_masked_wherever_they_stand_in_data() -> None:
    """In keys, lists, and what is nested; what is no text stays."""
    data = {"hunter22": ["a hunter22", {"b": "hunter22"}], "n": [1, None, True]}
    masked = {MASK: [f"a {MASK}", {"b": MASK}], "n": [1, None, True]}
    assert Redactor(["hunter22"]).value(data) == masked


@pytest.mark.parametrize("secret", ["a'b\\c", 'a"b\nc', "pa\\ss'wd"])
def test_a_secret_is_masked_as_the_repr_of_a_text_has_it(secret: str) -> None:
    """An error quotes what it was given."""
    for text in (secret, repr(secret), repr([secret]), repr(f"\"' {secret}")):
        masked = Redactor([secret]).text(text)
        assert MASK in masked
        assert secret[-2:] not in masked


def test_of_a_secret_that_holds_another_nothing_stays() -> None:
    """Whichever was named first."""
    redactor = Redactor(["hunter", "hunter22", "22"])
    assert redactor.text("hunter22") == MASK


def test_a_secret_of_the_settings_is_suspected_as_json_has_it() -> None:
    """A line of the log is JSON."""
    assert Redactor(['a"b']).suspects(json.dumps({"x": 'a"b'}))


def test_a_terminal_is_told_nothing() -> None:
    """Control characters are spelled out, but for a new line and a tab."""
    assert printable("a\x1b[31m\tb\r\n\x9bc\x7f") == "a\\x1b[31m\tb\\x0d\n\\x9bc\\x7f"


def test_known_secrets_alone_are_masked() -> None:
    """As JSON spells them; what only looks like one stays, for somebody decides by this text."""
    redactor = Redactor(['a"b\\c', "hunter22"])
    fake = "https://a:x;curl@b.org Bearer abcdefghijkl"
    text = json.dumps([fake, 'a"b\\c', "hunter22hunter22"])
    assert redactor.known(text) == (json.dumps([fake, MASK, MASK * 2]), 7 + 16)
    assert redactor.known(fake) == (fake, 0)


ODD = 'p"ss\\wörd 9'
OLD = "sk-q7Wz0Lk3Tn8Rb5"


class TestConfigured:
    @pytest.mark.parametrize("spelled", [ODD, "p%22ss%5Cw%C3%B6rd%209", 'p\\"ss\\\\wörd 9'])
    def test_a_secret_is_masked_as_others_write_it(self, spelled: str) -> None:
        """In text, in an address, in JSON."""
        assert Redactor([ODD]).configured(f"<{spelled}>") == f"<{MASK}>"

    @pytest.mark.parametrize("secret", [OLD, ODD, "a1b2c3d4"])
    @pytest.mark.parametrize("before", ["", "u", "u:"])
    @pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode, b16encode, bytes.hex])
    def test_a_secret_is_masked_in_what_was_encoded_with_it(
        self, secret: str, before: str, encode: Callable[[bytes], bytes | str]
    ) -> None:
        """Wherever it begins, and whatever follows; nothing that can be decoded stays of it."""
        found = encode(f"{before}{secret}?>~".encode())
        coded = found if isinstance(found, str) else found.decode()
        redactor = Redactor([secret])
        masked = redactor.configured(f"<{coded}>")
        assert redactor.holds_configured(coded)
        assert MASK in masked
        assert len(masked) <= len(MASK) + 2 + 12
        assert redactor.text(coded) == redactor.configured(coded)
        assert MASK in redactor.known(json.dumps([coded]))[0]
        assert redactor.suspects(json.dumps([coded]))

    @pytest.mark.parametrize(
        "spelled",
        [
            *("p%22ss%5cw%c3%b6rd%209", "p%22ss%5Cw%C3%B6rd+9", 'p\\"ss\\\\w\\u00f6rd 9'),
            *("https%3a//a/", "https%3A%2F%2Fa%2F", "https:\\/\\/a\\/"),
        ],
    )
    def test_a_secret_is_masked_as_urls_and_json_may_have_it(self, spelled: str) -> None:
        """There are several ways in both."""
        masked = Redactor([ODD, "https://a/"]).configured(f"<{spelled}>")
        assert masked == f"<{MASK}>"

    @pytest.mark.parametrize(
        ("width", "end"), [(76, "\n"), (64, "\r\n"), (60, "\\n"), (60, "\\r\\n")]
    )
    @pytest.mark.parametrize("encode", [b64encode, b16encode])
    def test_the_ends_of_lines_hide_nothing(
        self, width: int, end: str, encode: Callable[[bytes], bytes]
    ) -> None:
        """`base64` and `xxd -p` break lines, and so does a server that sends a file as JSON."""
        for before in range(0, 90, 7):
            coded = encode(b"x" * before + OLD.encode() + b"y" * 90).decode()
            wrapped = end.join(textwrap.wrap(coded, width))
            redactor = Redactor([OLD])
            masked = redactor.configured(wrapped)
            assert redactor.holds_configured(wrapped)
            assert "".join(masked.split(end)) == redactor.configured(coded)

    def test_a_file_is_searched_as_it_is_and_as_utf_16(self) -> None:
        """Bytes that are no text stand around it."""
        redactor = Redactor([ODD, OLD])
        for content in (ODD.encode(), OLD.encode("utf-16-le"), b64encode(ODD.encode())):
            assert redactor.is_in(b"\xff\xd8\0" + content + b"\xfe")
        assert not redactor.is_in(b'\xff\xd8\0 p"ss')

    def test_encodings_stay_cheap(self) -> None:
        """A megabyte takes about as long as without them: there is one look for each form."""
        bulk = "def look(path): return 'x/y'\n" * 40_000
        lines = f"{'QUJD' * 19}\n" * 13_000
        redactor = Redactor([OLD, ODD, "a1b2c3d4"])
        assert effort(lambda: redactor.configured(bulk), rounds=3) < 6
        # The worst: every line might be the one that an encoded secret crosses.
        assert effort(lambda: redactor.configured(lines), rounds=3) < 60

    def test_what_only_looks_like_a_credential_stays(self) -> None:
        """A tool's result may be about such things."""
        text = "AKIAIOSFODNN7EXAMPLE is the example of the manual"
        assert Redactor([ODD]).configured(text) == text

    def test_a_value_that_is_learned_later_is_masked_and_the_earlier_one_too(self) -> None:
        """A key that was replaced may still be valid."""
        redactor = Redactor([OLD])
        redactor.learn(["new-8f3K2m"])
        assert redactor.configured(f"{OLD} new-8f3K2m") == f"{MASK} {MASK}"
        assert redactor.text("new-8f3K2m") == MASK
        assert redactor.suspects('"new-8f3K2m"')

    @pytest.mark.parametrize(
        ("value", "tells"),
        [
            *[("hunter2", False), ("password", False), ("Correcthorse", False)],
            *[("aaaaaaaa", False), ("00000000", False), ("hunter22", True)],
            *[("correcthorsebattery", True), ("3f9a61c2", True)],
        ],
    )
    def test_words_and_short_values_tell_nothing(self, value: str, tells: bool) -> None:
        """Masked, they would make ordinary text unreadable."""
        assert is_telling(value) is tells
        assert (Redactor([value]).configured(f"a {value} b") != f"a {value} b") is tells
