"""Files out: pictures to be looked at, everything else as a document."""

import pytest

from adapters.errors import AdapterError, ChatMoved, SendDelayed, SendRejected, SendUnknown
from adapters.messages import Address, Choice, Outgoing, OutgoingFile
from adapters.telegram.adapter import TelegramAdapter
from tests.support.bot_api import BLOCKED, CUT, HTML_502, BotApi, Fault, flood

ANN = Address("telegram", "default", "7")
TOPIC = Address("telegram", "default", "-100", "3")
PNG = b"\x89PNG\r\n\x1a\n picture"


@pytest.fixture(autouse=True)
def _chats(api: BotApi) -> None:
    api.add_chat(7)
    api.add_chat(-100, topics=(3,))


def row(content: bytes, mime: str, address: Address = ANN, **fields: object) -> Outgoing:
    values = {"conversation": 1, "seq": 1, "nonce": "0" * 24, "payload": ""} | fields
    file = OutgoingFile("chart 1.png", mime, content)
    return Outgoing(address=address, file=file, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "mime", "kind"),
    [
        (PNG, "image/png", "photo"),
        (PNG, "image/svg+xml", "document"),
        (b"a,b", "text/csv", "document"),
        (PNG + bytes(10_000_000), "image/png", "document"),
        (b"no picture at all", "image/png", "document"),
    ],
)
async def test_how_a_file_is_shown(
    api: BotApi, adapter: TelegramAdapter, content: bytes, mime: str, kind: str
) -> None:
    """Pictures within the limit are photos, unless Telegram cannot show them as such."""
    receipt = await adapter.send(row(content, mime))
    (shown,) = api.messages
    assert (shown.kind, shown.text) == (kind, "")
    assert shown.file == ("chart 1.png", content)
    assert receipt.platform_ref == str(shown.message_id)


@pytest.mark.parametrize("mime", ["image/png", "text/plain"])
async def test_a_file_has_its_place_caption_and_buttons(
    api: BotApi, adapter: TelegramAdapter, mime: str
) -> None:
    """It goes into its topic, as an answer, formatted and with choices."""
    asked = api.message_update(-100, "?")["message"]["message_id"]
    caption = adapter.render("**a chart**")[0]
    choices = (Choice("Again", "/again"),)
    await adapter.send(row(PNG, mime, TOPIC, payload=caption, reply_to=str(asked), choices=choices))
    (shown,) = api.messages
    assert (shown.thread, shown.reply_to, shown.text) == (3, asked, "a chart")
    assert shown.entities == [{"type": "bold", "offset": 0, "length": 7}]
    assert shown.buttons[0][0]["text"] == "Again"


@pytest.mark.parametrize(("payload", "shown"), [("", "(re-sent)"), ("hi", "(re-sent)\nhi")])
async def test_an_unknown_outcome_is_sent_again_with_a_mark(
    api: BotApi, adapter: TelegramAdapter, payload: str, shown: str
) -> None:
    """A file that may have been shown says so in its caption."""
    caption = adapter.render(payload)[0] if payload else ""
    api.fail("sendDocument", CUT)
    with pytest.raises(SendUnknown):
        await adapter.send(row(b"x", "", payload=caption))
    receipt = await adapter.send(row(b"x", "", payload=caption, outcome_unknown=True))
    assert receipt.resent
    assert api.shown(7) == [payload, shown]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (flood(17), SendDelayed),
        (HTML_502, SendUnknown),
        (BLOCKED, SendRejected),
        (Fault("html", 413), SendRejected),
        (Fault("error", 413, "Request Entity Too Large"), SendRejected),
        (Fault("error", 400, "Bad Request: upgraded", {"migrate_to_chat_id": -5}), ChatMoved),
        (Fault("error", 400, "Bad Request: TOPIC_CLOSED"), SendRejected),
    ],
    ids=lambda value: getattr(value, "description", None),
)
async def test_what_becomes_of_a_failed_upload(
    api: BotApi, adapter: TelegramAdapter, fault: Fault, error: type[AdapterError]
) -> None:
    """As of a text; a refusal that is not about the picture is no reason to send it twice."""
    api.fail("sendPhoto", fault)
    with pytest.raises(error):
        await adapter.send(row(PNG, "image/png"))
    assert api.messages == []


@pytest.mark.parametrize("mime", ["image/png", "text/plain"])
async def test_a_success_that_names_no_message(
    api: BotApi, adapter: TelegramAdapter, mime: str
) -> None:
    """Whether the file is shown nobody knows."""
    for method in ("sendPhoto", "sendDocument"):
        api.fail(method, Fault("reply", body={"ok": True, "result": True}))
    with pytest.raises(SendUnknown):
        await adapter.send(row(PNG, mime))


async def test_what_is_too_much_is_not_even_tried(api: BotApi, adapter: TelegramAdapter) -> None:
    """50 MB, and 1024 characters below a file."""
    with pytest.raises(SendRejected, match="50 MB"):
        await adapter.send(row(bytes(50_000_001), ""))
    long = adapter.render("x" * 1025)[0]
    with pytest.raises(SendRejected, match="1024"):
        await adapter.send(row(b"x", "", payload=long))
    assert api.calls == []
