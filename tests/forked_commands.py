"""Runs commands of `adapter-bert` in forks of a process that has its imports.

python forked_commands.py SOCKET            this process
python forked_commands.py SOCKET WORDS...   what `python WORDS...` would do
"""

import json
import os
import signal
import socket
import sys
import traceback


def serve(path):
    """Forks for each message: words, folder and environment of a command."""
    from adapter_bert.commands import ablate, baseline, main, paper  # noqa: F401

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(8)
    # Forks that end are gone.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        caller, _ = listener.accept()
        message, streams, *_ = socket.recv_fds(caller, 2**20, 3)
        if os.fork():
            caller.close()
            for number in streams:
                os.close(number)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, closefd=False)
            for number, mode in enumerate("rww")
        )
        (_, *sys.argv), folder, environment = json.loads(message)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        code = 1
        try:
            main()
            code = 0
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            else:
                code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            caller.send(bytes([code]))
            os._exit(code)


def ask(path, words):
    """Has a fork run a command, and ends as it does."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(path)
    message = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [message], [0, 1, 2])
    raise SystemExit(ord(server.recv(1) or b"\1"))


if __name__ == "__main__":
    place, *rest = sys.argv[1:]
    ask(place, rest) if rest else serve(place)
