"""Runs the harness in mount and process namespaces of its own.

All mounts and processes of the test are inside, so they end with it, however it ends. The outer
process makes the room (a directory below `target/`), passes signals on, and removes the room. It
holds a lock on the room, so that a later run can remove the room of a run that was killed.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

INSIDE = "FANFS_CLUSTERS_ROOM"
# A test ends its lab within this many seconds; then the outer process ends the namespaces.
ORDERLY_END = 180
PREFIX = "clusters."
# In the room of a run with --keep.
KEPT = "kept"


def checkout():
    """The checkout that this file is in."""
    return Path(__file__).resolve().parents[3]


def room():
    """The room, inside the namespaces; otherwise None."""
    return Path(os.environ[INSIDE]) if INSIDE in os.environ else None


def _inner_process(unshare):
    """The first process of the namespaces."""
    try:
        children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        return int(children[0]) if children else None
    except OSError:
        return None


def _stop(process):
    """Asks the harness to end, and ends it if it does not."""
    inner = _inner_process(process.pid)
    if inner:
        os.kill(inner, signal.SIGTERM)
    try:
        return process.wait(ORDERLY_END if inner else 1)
    except subprocess.TimeoutExpired:
        process.kill()      # --kill-child ends all that is inside
        return process.wait()


def _remove(place):
    """Removes the room. It has no mounts here: these were inside."""
    if any(f" {place}" in line for line in Path("/proc/self/mounts").read_text().splitlines()):
        print(f"{place} has mounts; it stays", file=sys.stderr)
        return
    shutil.rmtree(place, ignore_errors=True)


def _lock(place):
    """Locks a room. Returns its descriptor, or None if a run has it."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        os.close(descriptor)
        return None


def _make_room():
    """Makes a room, and removes those of runs that were killed. Returns it and its lock."""
    target = checkout() / "target"
    target.mkdir(exist_ok=True)
    for left in target.glob(PREFIX + "*"):
        lock = None if (left / KEPT).exists() else _lock(left)
        if lock is not None:
            _remove(left)
            os.close(lock)
    place = tempfile.mkdtemp(prefix=PREFIX, dir=target)
    os.chmod(place, 0o755)
    return place, _lock(place)


def run(keep=False):
    """Runs this program again, inside. Returns its exit status."""
    place, _held = _make_room()

    def stop(number, _frame):
        raise InterruptedError(number)

    status = 1
    process = None
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, stop)
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--",
             "unshare", "--mount", "--propagation", "slave", "--pid", "--fork", "--kill-child",
             "--mount-proc", "--", sys.executable, *sys.argv],
            env={**os.environ, INSIDE: place}, start_new_session=True,
        )
        status = process.wait()
    except InterruptedError as interrupted:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        print("ending: the cluster is stopped first", file=sys.stderr)
        if process:
            _stop(process)
        status = 128 + interrupted.args[0]
    finally:
        if keep:
            Path(place, KEPT).touch()
            print(f"kept: {place}", file=sys.stderr)
        else:
            _remove(place)
    return status if status >= 0 else 1


def enter():
    """What the inner process does first."""
    def stop(number, _frame):
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True, timeout=10)
    connections = Path("/sys/fs/fuse/connections")
    if connections.is_dir() and not os.path.ismount(connections):
        subprocess.run(
            ["mount", "-t", "fusectl", "fusectl", str(connections)], check=False, timeout=10
        )
    (room() / "run").mkdir()
    os.environ["FANFS_RUNTIME_DIR"] = str(room() / "run")


def abort_mounts(below, kind=""):
    """Aborts the FUSE connections of the mounts below a directory whose type begins with `kind`."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _, rest = line.partition(" - ")
        number, point = words.split()[2].split(":")[1], words.split()[4]
        is_fuse = rest.split()[0].startswith("fuse" + kind)
        if is_fuse and (point + "/").startswith(str(below) + "/"):
            try:
                Path(f"/sys/fs/fuse/connections/{number}/abort").write_text("1")
            except OSError:
                pass
