"""A proxy on loopback before a store: it writes down every request, and lets one of them go wrong."""

import http.client
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

Fault = Literal["refused", "no answer", "cut off", "answer lost", "killed before", "killed after"]
DONE = {"cut off", "answer lost", "killed after"}
"""The faults of a request that was carried out."""
_ONLY_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class FailingProxy:
    """Passes requests on to a store on loopback.

    A request is known by what it asks for (`_Handler.named`): the order of those that are sent at once differs from run
    to run.
    """

    def __init__(self, port):
        self.store = port
        self.requests = []
        self.met = 0
        """How many times the fault was met."""
        self._failing, self._fault, self._lasting = "", "", False
        self._kill = lambda: None
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def fail(self, request, fault, *, lasting=False, kill=lambda: None):
        """Let ``request`` go wrong, the first time or, if ``lasting``, each time; all others pass."""
        with self._lock:
            self.requests, self.met = [], 0
            self._failing, self._fault, self._lasting, self._kill = request, fault, lasting, kill

    def fault_of(self, request):
        with self._lock:
            self.requests.append(request)
            if request != self._failing or (self.met and not self._lasting):
                return ""
            self.met += 1
            return self._fault

    def killed(self):
        self._kill()

    def wait(self):
        """Wait for longer than any client of a test does."""
        self._ended.wait(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: FailingProxy

    def handle_error(self, request, client_address):
        """Say nothing: clients hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format, *arguments):  # noqa: A002
        """Say nothing."""

    def _named(self):
        """What the request asks for, without what is drawn anew each time."""
        parts = urlsplit(self.path)
        asked = dict(parse_qsl(parts.query, keep_blank_values=True))
        asked.pop("uploadId", None)
        words = [self.command, parts.path, *(f"{name}={value}" for name, value in sorted(asked.items()))]
        text = " ".join([*words, self.headers.get("Range") or ""]).strip()
        return re.sub(r"[0-9a-f]{32}", "PLACE", text)

    def _pass(self):
        proxy, body = self.server.proxy, self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = proxy.fault_of(self._named())
        if fault == "killed before":
            proxy.killed()
            return self._hang_up()
        if fault == "no answer":
            proxy.wait()
            return self._hang_up()
        if fault == "refused":
            self.send_response(500)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        status, headers, data = self._ask(body)
        if fault == "killed after":
            proxy.killed()
        if fault in {"killed after", "answer lost"}:
            return self._hang_up()
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _ONLY_OF_ONE_HOP:
                self.send_header(name, value)
        length = next((value for name, value in headers if name.lower() == "content-length"), "0")
        self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if fault == "cut off":
            self.wfile.write(data[: len(data) // 2])
            return self._hang_up()
        self.wfile.write(data)
        return None

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def _ask(self, body):
        """Pass the request on, as it was signed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.proxy.store, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
