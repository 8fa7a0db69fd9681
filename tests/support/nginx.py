"""A real nginx in front of a gateway, where Debian's is installed; all its files in one folder."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

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
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{gateway};
      {rules}
    }}
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


@asynccontextmanager
async def nginx(folder: Path, gateway_port: int, rules: str = "") -> AsyncIterator[int]:
    """Run nginx before a gateway; yields the port to ask. `rules` stand beside `proxy_pass`."""
    assert NGINX is not None
    port = free_port()
    config = _config(folder, gateway_port, port, rules)
    process = await asyncio.create_subprocess_exec(
        NGINX, "-c", str(config), "-e", str(folder / "error.log"), stderr=asyncio.subprocess.PIPE
    )
    try:
        await _listening(process, port)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _config(folder: Path, gateway_port: int, port: int, rules: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, gateway=gateway_port, rules=rules))
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
