"""Runs programs and looks at them from outside: when their first byte came, how much memory they held, how fast they said they were."""

import argparse
import contextlib
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

import llama_cpp

ROOT = pathlib.Path(__file__).resolve().parents[2]

SPIN = "while True: pass"


class Failed(Exception):
    """A program ended with an error: its command and the end of what it said."""


@dataclass
class Run:
    out: str
    err: str
    seconds: float
    first_byte: float  # seconds from before exec to the first byte on standard output; the whole time when there was none
    peak_rss: int  # bytes, as the kernel counts them for the process (wait4)


def run(command, fifo=False, environment=None):
    """`fifo`: with real-time priority, so that other work on the machine does not count (needs root)."""
    command = [str(part) for part in command]
    if fifo:
        command = ["chrt", "-f", "1", *command]
    with tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env={**os.environ, **(environment or {})}
        )
        pieces, first = [], None
        while piece := os.read(process.stdout.fileno(), 1 << 16):
            first = first or time.monotonic() - start
            pieces.append(piece)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        err.seek(0)
        said = err.read().decode("utf-8", "replace")
    out = b"".join(pieces).decode("utf-8", "replace")
    if process.returncode:
        raise Failed(f"exit code {process.returncode}: {' '.join(command)}\n{(said or out)[-2000:]}")
    return Run(out, said, seconds, first or seconds, usage.ru_maxrss * 1024)


@contextlib.contextmanager
def busy_neighbours(count):
    """So many processes that spin while the block runs."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@dataclass
class Summary:
    median: float
    spread: float  # half of what lies between least and greatest, as a share of the median

    @staticmethod
    def of(values):
        median = statistics.median(values)
        return Summary(median, (max(values) - min(values)) / 2 / median if median else 0.0)


def ratio_of_rounds(ours, theirs):
    """Ours over theirs of the same round, so that what slows the machine for a while slows both."""
    return Summary.of([a / b for a, b in zip(ours, theirs)])


def machine():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    names = [line.split(": ", 1)[1] for line in text.splitlines() if line.startswith("model name")]
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    known = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags]
    return {"cpu": names[0] if names else platform.machine(), "cpus": len(names), "flags": known, "kernel": platform.release()}


def versions(lapidary):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    ours = run([lapidary, "--version"]).out.split()[-1]
    return {"lapidary": ours, "commit": commit.stdout.strip(), "llama.cpp": f"{llama_cpp.PACKAGE} {llama_cpp.VERSION}"}


def names(known):
    """A type of arguments: words of `known` with commas between them."""

    def read(text):
        chosen = tuple(text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return chosen

    return read
