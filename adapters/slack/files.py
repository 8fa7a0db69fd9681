"""Downloads what came with messages, with the token."""

from http import HTTPStatus

from adapters.errors import FetchDelayed, FetchRejected, SendDelayed
from adapters.messages import Attachment
from adapters.slack.client import Client
from adapters.slack.errors import CREDENTIALS, Coded, mapped


async def download(client: Client, attachment: Attachment, limit_bytes: int) -> bytes:
    """Return the bytes of a file that came with a message.

    Raises:
        FetchDelayed: Try again later.
        FetchRejected: It cannot be had any more, or it has more than `limit_bytes`.
    """
    try:
        with mapped():
            answer = await client.web.files_info(file=attachment.ref)
            file = answer.get("file")
            known = file if isinstance(file, dict) else {}
            url = str(known.get("url_private_download") or known.get("url_private") or "")
            if not client.is_slack(url):
                raise FetchRejected("the file is not kept at Slack")
            return await client.exchange(
                "GET",
                url,
                lambda answer: check_download(answer.status, answer.content_type, attachment),
                limit_bytes=limit_bytes,
                headers=client.authorization(url),
                # It may lead to the login page, or elsewhere; the token must not follow.
                allow_redirects=False,
            )
    except Coded as exc:
        # A token can be fixed, and the file is still there.
        if exc.code in CREDENTIALS:
            raise FetchDelayed(str(exc)) from exc
        raise FetchRejected(f"Slack does not hand out the file ({exc.code})") from exc
    except SendDelayed as exc:
        raise FetchDelayed(str(exc)) from exc


def check_download(status: int, content_type: str, attachment: Attachment) -> None:
    """Let what brings a file pass.

    Without the scope `files:read` Slack answers with its login page, or leads there.

    Raises:
        FetchDelayed: It cannot be had now.
        FetchRejected: It can never be had.
    """
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise FetchDelayed(f"the file's server answered with HTTP status {status}")
    is_login = content_type == "text/html" and "html" not in attachment.mime
    if status != HTTPStatus.OK or is_login:
        raise FetchRejected(f"Slack does not hand out the file (HTTP status {status})")
