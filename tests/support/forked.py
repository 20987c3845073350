"""Asks :mod:`tests.support.forking` for a command and stands for it: ``python -I -S forked.py SOCKET MODULE
ARGUMENT…``.

The command gets this process's arguments, folder, environment and streams; this one passes its signals on and ends with
its exit code. It imports little, because it is started for every command.
"""

import os
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def main(address: str, words: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        socket.send_fds(link, [b"-"], [0, 1, 2])
        settings = [f"{name}={value}" for name, value in os.environ.items()]
        link.sendall("\0".join([os.getcwd(), str(len(words)), *words, *settings]).encode(errors="surrogateescape"))
        link.shutdown(socket.SHUT_WR)
        with link.makefile() as answers:
            command = int(answers.readline())
            for number in PASSED_ON:
                signal.signal(number, lambda received, _: os.kill(command, received))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            return int(answers.readline())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
