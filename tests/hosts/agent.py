"""A replacement for ``ssh``: ``agent.py SOCKET [OPTION ...] HOST COMMAND ...`` runs a command on another pretend host.

The switch starts the command with the streams of this process. It does not answer if the host is off, like an
ssh that waits for a host that no longer answers.
"""

import json
import socket
import sys
from multiprocessing.reduction import sendfds

#: Options of ssh that have a value.
WITH_VALUE = ("-o", "-p", "-l", "-i", "-F")


def main(path, *arguments):
    """Run the command and return its exit status."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        del words[: 2 if words[0] in WITH_VALUE else 1]
    host, command = words[0].rpartition("@")[2], " ".join(words[1:])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        sendfds(connection, [0, 1, 2])
        connection.sendall(json.dumps([host, command]).encode() + b"\n")
        return int(connection.recv(16) or b"255")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
