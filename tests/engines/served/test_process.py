"""A server of our own: started, waited for, ended, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tether.engines.served.client import Client, ServerAnswerError, ServerGoneError
from tether.engines.served.process import Own
from tether.errors import ProcessLostError

SERVER = """
import http.server, os, subprocess, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{}')
    def log_message(self, *a): pass
worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
print('my worker is', worker.pid, flush=True)
open(sys.argv[2], 'w').write(f'{os.getpid()} {worker.pid}')
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"""


def own(folder: Path, code: str = SERVER, start_s: float = 30.0) -> Own:
    return Own(
        lambda port: [sys.executable, "-c", code, str(port), str(folder / "pids")],
        {},
        start_s=start_s,
        weights=folder / "w",
    )


async def ready(server: Own) -> None:
    async def is_alive() -> bool:
        client = Client(lambda: server.url, silence_s=1.0, control_s=1.0)
        try:
            await client.get("/")
        except (ServerAnswerError, ServerGoneError):
            return False
        finally:
            await client.close()
        return True

    await server.ready(is_alive)


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def is_there(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_gone(found: list[int]) -> None:
    until = time.monotonic() + 15
    while any(map(is_there, found)):
        assert time.monotonic() < until, "a process was left behind"
        time.sleep(0.05)


def test_a_server_is_waited_for_and_ended_with_its_workers_and_started_anew(tmp_path: Path) -> None:
    server = own(tmp_path)
    asyncio.run(ready(server))
    first, log = pids(tmp_path), server.log
    assert "my worker is" in log.read_text()
    server.end()
    server.gone()
    wait_gone(first)
    asyncio.run(ready(server))
    second = pids(tmp_path)
    assert second != first
    server.end()
    server.gone()
    wait_gone(second)


def test_a_server_that_was_killed_is_started_anew_when_it_is_needed(tmp_path: Path) -> None:
    server = own(tmp_path)
    asyncio.run(ready(server))
    first = pids(tmp_path)
    os.kill(first[0], signal.SIGKILL)
    wait_gone(first)
    server.end()
    asyncio.run(ready(server))
    assert not set(pids(tmp_path)) & set(first)
    server.end()
    server.gone()


def test_a_server_goes_with_a_guard_that_is_killed(tmp_path: Path) -> None:
    server = own(tmp_path)
    asyncio.run(ready(server))
    assert server._process is not None
    server._process.kill()
    wait_gone(pids(tmp_path)[:1])
    wait_gone(pids(tmp_path))


@pytest.mark.parametrize("way", ["killed", "killed after its guard, as Ray does"])
def test_no_server_outlives_the_process_that_started_it_however_that_ends(tmp_path: Path, way: str) -> None:
    (tmp_path / "w").mkdir()
    code = f"""
import sys, pathlib, time, os
sys.path[:0] = {sys.path!r}
from tether.engines.served.process import Own
folder = pathlib.Path({str(tmp_path)!r})
server = Own(lambda port: [sys.executable, '-c', {SERVER!r}, str(port), str(folder / 'pids')], {{}}, start_s=9.0,
             weights=folder / 'w')
server.start()
(folder / 'guard').write_text(f'{{server._process.pid}} {{server.folder}}')
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 60
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    guard, folder = (tmp_path / "guard").read_text().split()
    if way != "killed":
        os.kill(int(guard), signal.SIGKILL)
    parent.kill()
    parent.wait()
    wait_gone(pids(tmp_path))
    until = time.monotonic() + 10
    while (tmp_path / "w").exists() or Path(folder).exists():
        assert time.monotonic() < until, "weights or the log were left behind"
        time.sleep(0.05)


def test_a_server_that_ends_before_it_answers_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    server = own(tmp_path, "print('no GPU here'); raise SystemExit(3)")
    with pytest.raises(ProcessLostError, match=r"ended with status 3 before it answered; it said:\nno GPU here"):
        asyncio.run(ready(server))


def test_a_server_that_never_answers_is_ended_at_its_deadline(tmp_path: Path) -> None:
    server = own(tmp_path, "import time; print('thinking', flush=True); time.sleep(600)", start_s=1.5)
    with pytest.raises(ProcessLostError, match=r"(?s)engine\.start_s = 1.5 seconds, and is ended.*thinking"):
        asyncio.run(ready(server))
    server.gone()
