"""Runs programs: each has a time limit, and each is recorded.

A program that exceeds its limit is killed with its process group. If it waits for a FUSE mount it
cannot be killed, so `on_limit` first aborts the connections of these mounts.
"""

import os
import shlex
import signal
import subprocess
import sys
import time


class Failure(Exception):
    """The test cannot continue: the message says the reason in one line."""


def say(text):
    """Shows progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def end_group(process, wait=5.0):
    """Kills a process and its group, and waits for its end. False if it does not end."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(wait)
        return True
    except subprocess.TimeoutExpired:
        return False


class Commands:
    """Starts programs. `recorded` has one line for each kind of command."""

    def __init__(self):
        self.recorded = []
        self.on_limit = lambda: None
        self.live = []

    def record(self, command, note=""):
        line = shlex.join(os.fsdecode(word) for word in command) + note
        if line not in self.recorded and len(self.recorded) < 5000:
            self.recorded.append(line)

    def start(self, command, **options):
        """Starts a program in a session of its own."""
        self.record(command)
        process = subprocess.Popen(command, start_new_session=True, **options)
        self.live.append(process)
        return process

    def finish(self, process, limit, feed=None):
        """Waits for a program. Returns its output and its errors."""
        try:
            return process.communicate(feed, timeout=limit)
        except subprocess.TimeoutExpired:
            self.on_limit()
            end_group(process)
            words = shlex.join(os.fsdecode(word) for word in process.args[:6])
            raise Failure(f"`{words} ...` did not end within {limit:.0f} s") from None
        except BaseException:
            self.on_limit()
            end_group(process)
            raise
        finally:
            if process in self.live and process.poll() is not None:
                self.live.remove(process)

    def run(self, command, limit=60, feed=None, check=True, env=None):
        """Runs a program, and returns its standard output."""
        process = self.start(
            command, stdin=subprocess.PIPE if feed is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **env} if env else None,
        )
        out, errors = self.finish(process, limit, feed)
        if check and process.returncode != 0:
            words = shlex.join(os.fsdecode(word) for word in command)
            last = errors.decode(errors="replace").strip()[-600:]
            raise Failure(f"`{words}` ended with status {process.returncode}: {last}")
        return out

    def end_all(self):
        """Kills the programs that still run."""
        self.on_limit()
        for process in self.live:
            end_group(process)
        self.live = []


def wait_until(what, limit, ready, every=0.5):
    """Waits until `ready()` is true."""
    until = time.monotonic() + limit
    while not ready():
        if time.monotonic() > until:
            raise Failure(f"{what}: not within {limit:.0f} s")
        time.sleep(every)
