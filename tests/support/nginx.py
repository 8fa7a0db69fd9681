"""A real nginx in front of a gateway, where Debian's is installed; all its files in one folder."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.process import free_port

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")

CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    {listen}
    {location}
  }}
}}
"""

PROPER = """
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Proto https;
      proxy_buffering off;
"""
"""As docs/operations.md has it, for a server that ends TLS."""


PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def documented(gateway_port: int) -> str:
    """Return the block of docs/operations.md as it is written there, but for the port."""
    block = PAGE.read_text().partition("```nginx\nlocation / {")[2].partition("```")[0]
    return f"location / {{{block}".replace("127.0.0.1:8765", f"127.0.0.1:{gateway_port}")


def certificate(folder: Path) -> ssl.SSLContext:
    """Make a key and a certificate for localhost in a folder; returns what trusts it."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    began = datetime.now(UTC) - timedelta(days=1)
    builder = (
        x509
        .CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=7))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    )
    made = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (folder / "cert.pem").write_bytes(made)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(secret)
    return ssl.create_default_context(cadata=made.decode())


@asynccontextmanager
async def nginx_with_tls(folder: Path, gateway_port: int, port: int) -> AsyncIterator[None]:
    """Run nginx with TLS and the documented block; `certificate` was made in the folder."""
    listen = f"""listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/cert.pem;
    ssl_certificate_key {folder}/key.pem;"""
    async with _running(folder, port, listen, documented(gateway_port)):
        yield


@asynccontextmanager
async def nginx(folder: Path, gateway_port: int, rules: str = "") -> AsyncIterator[int]:
    """Run nginx before a gateway; yields the port to ask. `rules` stand beside `proxy_pass`."""
    port = free_port()
    location = f"location / {{ proxy_pass http://127.0.0.1:{gateway_port}; {rules} }}"
    async with _running(folder, port, f"listen 127.0.0.1:{port};", location):
        yield port


@asynccontextmanager
async def _running(folder: Path, port: int, listen: str, location: str) -> AsyncIterator[None]:
    assert NGINX is not None
    config = _config(folder, listen, location)
    process = await asyncio.create_subprocess_exec(
        NGINX, "-c", str(config), "-e", str(folder / "error.log"), stderr=asyncio.subprocess.PIPE
    )
    try:
        await _listening(process, port)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _config(folder: Path, listen: str, location: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, listen=listen, location=location))
    return config


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    async with asyncio.timeout(30):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                continue
            writer.close()
            return
    raise AssertionError("nginx ended")
