"""A strict object store on a loopback port, as Amazon S3 is for single objects.

It takes signed requests alone (Signature Version 4, with the digest of the body), answers with S3's
own codes, and notes in `violations` what a correct client never does. `down`, `refusing` and `cuts`
break it. Sources: Amazon S3 API Reference; AWS General Reference, "Signature Version 4 signing".
"""

import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

from aiohttp import web
from aiohttp.test_utils import TestServer

KEY_ID, SECRET_KEY = "AKIDPARLEYTEST", "s3cret/of+the/test"
REGION, BUCKET = "eu-central-1", "parley-files"
SKEW = timedelta(minutes=15)
"""Source: S3 error RequestTimeTooSkewed."""
UNSIGNED = "UNSIGNED-PAYLOAD"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class S3Server:
    """One bucket.

    Attributes:
        objects: What is stored, by key.
        down: Every request is answered with 503 SlowDown.
        refusing: Every signature is answered as one of a key without rights.
        cuts: So many next bodies of answers end early.
        loses: So many next requests are carried out, and never answered.
        asked: Method and key of each request that was carried out.
        violations: What a correct client never does.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.down = self.refusing = False
        self.cuts = self.loses = 0
        self.asked: list[tuple[str, str]] = []
        self.violations: list[str] = []
        self._server: TestServer | None = None

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.port}"

    def settings(self, **changed: Any) -> dict[str, Any]:
        """Return the section `storage` of what keeps its files here."""
        return {
            "files": f"s3://{BUCKET}/home/one",
            "files_endpoint": self.endpoint,
            "files_region": REGION,
            "files_key_id": KEY_ID,
            "files_secret_key": SECRET_KEY,
            **changed,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator["S3Server"]:
        app = web.Application(middlewares=[self._checked], client_max_size=100_000_000)
        app.add_routes([
            web.put("/{bucket}/{key:.+}", self._put),
            web.get("/{bucket}/{key:.+}", self._get, allow_head=False),
            web.delete("/{bucket}/{key:.+}", self._delete),
            web.post("/{bucket}", self._delete_many),
        ])
        self._server = TestServer(app)
        await self._server.start_server()
        try:
            yield self
        finally:
            await self._server.close()

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what S3 refuses, and break where the test wants it."""
        body = await request.read()
        if self.down:
            return _error(503, "SlowDown")
        if problem := self._problem(request, body):
            return problem
        if request.match_info.get("bucket") != BUCKET:
            return _error(404, "NoSuchBucket")
        self.asked.append((request.method, request.match_info.get("key", "")))
        response = await handler(request)
        if self.loses:
            self.loses -= 1
            assert request.transport is not None
            request.transport.abort()
        return response

    def _problem(self, request: web.Request, body: bytes) -> web.Response | None:
        given = _authorization(request.headers.get("Authorization", ""))
        if given is None:
            self.violations.append(f"{request.method} {request.path}: unsigned")
            return _error(403, "AccessDenied")
        digest = request.headers.get("x-amz-content-sha256", "")
        if digest == UNSIGNED:
            self.violations.append(f"{request.method} {request.path}: the body is not signed")
        elif digest != hashlib.sha256(body).hexdigest():
            return _error(400, "XAmzContentSHA256Mismatch")
        stamp = request.headers.get("x-amz-date", "")
        at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if abs(datetime.now(UTC) - at) > SKEW:
            return _error(403, "RequestTimeTooSkewed")
        scope = f"{stamp[:8]}/{REGION}/s3/aws4_request"
        if given["Credential"] != f"{KEY_ID}/{scope}":
            unknown = not given["Credential"].startswith(f"{KEY_ID}/")
            return _error(403, "InvalidAccessKeyId" if unknown else "AuthorizationHeaderMalformed")
        if given["Signature"] != _signature(request, given["SignedHeaders"], scope, digest):
            return _error(403, "SignatureDoesNotMatch")
        return _error(403, "AccessDenied") if self.refusing else None

    async def _put(self, request: web.Request) -> web.Response:
        if request.query_string:
            self.violations.append(f"PUT with {request.query_string}")
            return _error(501, "NotImplemented")
        key, body = request.match_info["key"], await request.read()
        if self.objects.get(key, body) != body:
            self.violations.append(f"{key} was overwritten with other bytes")
        self.objects[key] = body
        return web.Response(headers={"ETag": _etag(body)})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        content = self.objects.get(request.match_info["key"])
        if content is None:
            return _error(404, "NoSuchKey")
        headers = {"ETag": _etag(content), "Last-Modified": _http_date()}
        begins = request.http_range.start or 0
        whole = {"Content-Range": f"bytes {begins}-{len(content) - 1}/{len(content)}"}
        headers, status = (headers | whole, 206) if begins else (headers, 200)
        body = content[begins:]
        if not self.cuts:
            return web.Response(body=body, headers=headers, status=status)
        self.cuts -= 1
        headers["Content-Length"] = str(len(body))
        response = web.StreamResponse(headers=headers, status=status)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    async def _delete(self, request: web.Request) -> web.Response:
        # One that is not there is deleted, too. Source: DeleteObject.
        self.objects.pop(request.match_info["key"], None)
        return web.Response(status=204)

    async def _delete_many(self, request: web.Request) -> web.Response:
        if request.query_string not in {"delete", "delete="}:
            self.violations.append(f"POST with {request.query_string}")
            return _error(501, "NotImplemented")
        if not {"Content-MD5", "x-amz-checksum-sha256"} & set(request.headers):
            return _error(400, "MissingContentMD5")
        told = []
        # Of our own client, in a test.
        for element in ElementTree.fromstring(await request.read()).iter():  # noqa: S314
            if element.tag.rpartition("}")[2] == "Key":
                key = element.text or ""
                self.asked.append(("DELETE", key))
                self.objects.pop(key, None)
                told.append(f"<Deleted><Key>{key}</Key></Deleted>")
        text = f'<?xml version="1.0"?><DeleteResult>{"".join(told)}</DeleteResult>'
        return web.Response(text=text, content_type="application/xml")


def _authorization(header: str) -> dict[str, str] | None:
    scheme, _, rest = header.partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        return None
    return dict(each.strip().split("=", 1) for each in rest.split(","))


def _signature(request: web.Request, signed: str, scope: str, digest: str) -> str:
    """Return what the signature has to be."""
    pairs = [each.partition("=") for each in request.query_string.split("&") if each]
    query = sorted(
        (quote(unquote_plus(name), safe="-_.~"), quote(unquote_plus(value), safe="-_.~"))
        for name, _, value in pairs
    )
    canonical = [
        request.method,
        request.raw_path.partition("?")[0],
        "&".join(f"{name}={value}" for name, value in query),
        *(f"{name}:{' '.join(request.headers[name].split())}" for name in signed.split(";")),
        "",
        signed,
        digest,
    ]
    stamp = request.headers["x-amz-date"]
    hashed = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashed}"
    key = f"AWS4{SECRET_KEY}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, to_sign.encode(), "sha256").hex()


def _error(status: int, code: str) -> web.Response:
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return web.Response(status=status, text=text, content_type="application/xml")


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _http_date() -> str:
    return datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
