"""Faults and data movement while a file is read through fanfs with placement."""

import os
import time

from . import compare, work
from .commands import say, wait_until
from .measure import os_path
from .mount import Mount

BEFORE, DOWN, AFTER = 1.5, 5.0, 3.0     # seconds


class Disturbance:
    """Reads a file again and again while something else happens."""

    def __init__(self, test, mount, file, what):
        self.test = test
        self.what = what
        self.done = test.room / f"done{test.next_number()}"
        job = {"path": os_path(mount, file), "digests": file.digests,
               "blocks": work.blocks_of(file.size), "until": os.fsdecode(self.done)}
        self.readers = work.Readers(test.commands, [job])
        self.begun = None

    def __enter__(self):
        self.begun = time.monotonic()
        self.readers.begin()
        time.sleep(BEFORE)
        return self

    def __exit__(self, kind, *_):
        self.done.touch()
        if kind is not None:
            return
        result = self.readers.results(extra=300)[0]
        well = result["failed"] == 0 and result["wrong"] == 0 and result["reads"] > 0
        text = (f"{result['reads']} reads, {result['wrong']} wrong, {result['failed']} failed, "
                f"longest {result['longest']:.2f} s")
        print(f"  {self.what}: {text}", flush=True)
        self.test.expect(f"reads while {self.what}", well, f"{text} {result['errors']}")
        self.test.results.setdefault("faults", []).append(
            {"what": self.what, "longest_read_s": round(result["longest"], 3),
             "longest_ended_at_s": round(result["longest_at"] - self.begun, 2),
             **{key: result[key] for key in ("reads", "wrong", "failed", "passes", "errors")}})


def kill_and_restore(test, mount, file, daemon, what):
    """Kills a daemon, and starts it again while the reader continues."""
    lab = test.cluster.lab
    say(f"{what}: killing {daemon}")
    with Disturbance(test, mount, file, what):
        lab.kill(daemon)
        time.sleep(DOWN)
        lab.start(daemon)
        time.sleep(AFTER)
    wait_until(f"three healthy replicas after {what}", 120,
               lambda: mount.healthy() == len(mount.nodes))
    test.cluster.settle()


def rebalance(test, mount, file, what, start):
    """Moves data while the reader continues, then compares the placement again."""
    say(what)
    before = test.cluster.chunks(file)
    with Disturbance(test, mount, file, what):
        start()
        test.cluster.settle()
        time.sleep(AFTER)
    moved = sum(old != new for old, new in zip(before, test.cluster.chunks(file)))
    print(f"  {moved} of {len(before)} chunks have other nodes, or another primary")
    test.results["faults"][-1]["moved_chunks"] = moved
    different = compare.contents(test, mount, [file])
    test.expect(f"content after {what}", not different, "; ".join(different))
    compare.judge(test, f"placement after {what}", file, compare.placement(test, mount, file))


def all_faults(test):
    """Kills daemons, and moves data."""
    cluster = test.cluster
    say("faults: making a file")
    file = cluster.make_large("faults", test.options.mib)
    cluster.settle()
    with Mount(test, file.volume, test.nodes, placement=test.placement(file.volume)) as mount:
        # A node that serves the file.
        served = cluster.chunks(file)[0].servers[0]
        if cluster.copies > 1:
            kill_and_restore(test, mount, file, cluster.storage_daemon(served),
                             f"the storage daemon of {served} is killed and started again")
        else:
            print("  one copy: no storage daemon is killed, as the cluster cannot serve its data")
        kill_and_restore(test, mount, file, cluster.gateway_daemon(served),
                         f"the gateway of {served} is killed and started again")
        if not test.options.quick:
            for what, start in cluster.rebalances(file):
                rebalance(test, mount, file, what, start)
        test.results["status_after_faults"] = mount.status()["counters"]
    cluster.remove(file)
