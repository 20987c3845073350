"""A server that claims to be Redis 6.2. It answers HELLO, INFO, PING and TIME, and every EVAL with a time, and no other
command.

No package here brings one so old. Run it with ``--port N`` or ``--unixsocket PATH``, as ``redis-server`` is.
"""

import argparse
import socketserver

_INFO = b"redis_version:6.2.14\r\n"
_TIME = b"*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n"
_ANSWERS = {
    b"HELLO": b"%2\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n$5\r\nproto\r\n:3\r\n",
    b"INFO": b"$%d\r\n%s\r\n" % (len(_INFO), _INFO),
    b"PING": b"+PONG\r\n",
    b"TIME": _TIME,
    b"EVAL": _TIME,
}


class Connection(socketserver.StreamRequestHandler):
    """One client."""

    def handle(self) -> None:
        """Answer commands until the client goes."""
        while line := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
            self.wfile.write(_ANSWERS.get(words[0].upper(), b"-ERR unknown command\r\n"))


class Server(socketserver.ThreadingTCPServer):
    """Loopback only."""

    allow_reuse_address = True
    daemon_threads = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--unixsocket")
    given = parser.parse_known_args()[0]
    if given.unixsocket:
        socketserver.ThreadingUnixStreamServer(given.unixsocket, Connection).serve_forever()
    Server(("127.0.0.1", given.port), Connection).serve_forever()
