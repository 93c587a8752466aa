r"""Runs commands, and draws what a terminal shows of them as an animated SVG.

    .venv/bin/python -m lab.record_terminal docs/first_minutes.svg < COMMANDS

Each line is a command, run in a folder that is empty at first. One that ends
with `&` runs until the end, and the next one waits for its address. The last
lines of each are shown. Pauses are cut to two seconds; times are real.
"""

import html
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator

from adapter_bert import command_line, files
from adapter_bert.errors import UserError

WIDTH, SHOWN, PAUSE, HEIGHT = 100, 6, 2.0, 18
WRAPPED = {"width": WIDTH, "subsequent_indent": "    "}
# Where and when absl logged, and a progress bar's earlier states.
NOISE = re.compile(r"^[IW]\d{4} \S+ \d+ \S+\] |^.*\r(?!$)")
STYLE = """
rect { fill: #1d1f21 } .typed { fill: #b5bd68 } .time { fill: #81a2be }
text { font: 13px monospace; fill: #c5c8c6; white-space: pre }
@keyframes show { from { opacity: 0 } to { opacity: 1 } }
text { animation: show 0.2s both }
"""


def run(commands: list[str]) -> Iterator[tuple[str, list[str], float]]:
    """Yields each command, the last lines of its output, and its seconds."""
    running, home = [], os.path.expanduser("~")
    with tempfile.TemporaryDirectory() as folder:
        try:
            for command in commands:
                began = time.monotonic()
                stays = command.endswith("&")
                process = subprocess.Popen(
                    ["bash", "-c", f"exec {command.rstrip('& ')}"],
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                lines = []
                for line in process.stdout:
                    line = line.decode().rstrip("\r\n").replace(home, "~")
                    lines.append(NOISE.sub("", line))
                    if stays and "at http" in line:
                        running.append(process)
                        break
                else:
                    if process.wait():
                        raise UserError(f"{command} failed: {lines[-1:]}")
                yield command, lines[-SHOWN:], time.monotonic() - began
        finally:
            for process in running:
                process.terminate()
                process.communicate()


def draw(steps: Iterator[tuple[str, list[str], float]]) -> str:
    """Draws the steps as an SVG, whose lines appear one after the other."""
    rows, moment = [], 0.5

    def add(text: str, kind: str) -> None:
        y = HEIGHT * (len(rows) + 1)
        rows.append(
            f'<text x="8" y="{y}" class="{kind}" '
            f'style="animation-delay: {moment:.1f}s">{html.escape(text)}</text>'
        )

    for command, lines, seconds in steps:
        for line in textwrap.wrap(f"$ {command}", **WRAPPED):
            add(line, "typed")
        moment += min(seconds, PAUSE)
        for line in lines:
            for part in textwrap.wrap(line, **WRAPPED):
                add(part, "output")
        if seconds > PAUSE:
            add(f"# {seconds:.0f} seconds", "time")
        moment += 1.0
    height = HEIGHT * (len(rows) + 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{8 * WIDTH + 48}" '
        f'height="{height}"><style>{STYLE}</style><rect width="100%" '
        f'height="100%" rx="6"/>\n' + "\n".join(rows) + "\n</svg>\n"
    )


def main() -> None:
    """Writes the SVG that the argument names."""
    if len(sys.argv) != 2:
        raise UserError("usage: record_terminal FILE.svg < COMMANDS")
    path = os.path.abspath(sys.argv[1])
    commands = [line for line in sys.stdin.read().splitlines() if line]
    files.write_text(path, draw(run(commands)))


if __name__ == "__main__":
    with command_line.run():
        main()
