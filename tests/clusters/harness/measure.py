"""Measures rates: a reader through fanfs, and the limit that the links set."""

import contextlib
import statistics
import time

from . import work
from .commands import say
from .mount import Mount
from .worker import BLOCK

ROWS = {
    "one": "fanfs, one replica",
    "three": "three mounts of one replica, a third of the file each",
    "local": "the limit: three mounts of one replica, each its node's own chunks",
    "without": "fanfs, three replicas, no placement",
    "with": "fanfs, three replicas, placement",
}
# Reads in flight of each reader of `local`. It has no readahead, which would cross the chunks'
# ends; 16 MiB hide the delay of a link's queue (100 ms) up to 160 MB/s.
DEPTH = 16
IDLE = 3.0      # seconds


def pieces(chunks, size):
    """Parts of chunks, each at most 1/24 of the file: first block, end, servers."""
    longest = max(size // 24 // BLOCK, 1)
    found = []
    for chunk in chunks:
        # A block belongs to the chunk of its first byte.
        first, end = -(-chunk.start // BLOCK), -(-chunk.end // BLOCK)
        while first < end:
            until = min(first + longest, end)
            found.append((first, until, chunk.servers))
            first = until
    return found


def assign(chunks, size, nodes):
    """The blocks that each node reads: only its own, and as balanced as the copies permit."""
    load = dict.fromkeys(nodes, 0)
    owner = {}
    parts = pieces(chunks, size)
    for part in parts:
        owner[part] = min((node for node in part[2] if node in load), key=lambda node: load[node])
        load[owner[part]] += part[1] - part[0]

    def better_move():
        for part in sorted(parts, key=lambda part: -load[owner[part]]):
            length = part[1] - part[0]
            for node in part[2]:
                if node in load and load[node] + length < load[owner[part]]:
                    return part, node
        return None

    while (move := better_move()) is not None:
        part, node = move
        load[owner[part]] -= part[1] - part[0]
        owner[part] = node
        load[node] += part[1] - part[0]
    return {node: [list(part[:2]) for part in parts if owner[part] == node] for node in nodes}


def thirds(size, nodes):
    """A contiguous part of the file for each node."""
    blocks = size // BLOCK
    ends = [blocks * i // len(nodes) for i in range(len(nodes) + 1)]
    return {node: [[ends[i], ends[i + 1]]] for i, node in enumerate(nodes)}


class Plan:
    """The mounts and readers of one row."""

    def __init__(self, test, row, file):
        self.row = row
        self.file = file
        self.volume = file.volume
        nodes = test.nodes
        whole = work.blocks_of(file.size)
        if row == "one":
            self.shares = [((nodes[0],), whole)]
        elif row in ("without", "with"):
            self.shares = [(nodes, whole)]
        else:
            split = (thirds(file.size, nodes) if row == "three"
                     else assign(test.cluster.chunks(file), file.size, nodes))
            self.shares = [((node,), split[node]) for node in nodes]
        self.placement = test.placement(self.volume) if row == "with" else ""
        self.read = 'readahead_max = "0B"\n' if row == "local" else ""
        self.depth = DEPTH if row == "local" else 1


def traffic_between(before, after, idle):
    """The bytes of a measurement, without those of an idle cluster."""
    seconds = after["at"] - before["at"]
    sent, received = (after[key] - before[key] - idle[key] * seconds
                      for key in ("sent", "received"))
    return {"link_bytes": round(sent), "inter_node_bytes": round(sent - received)}


def idle_traffic(test):
    """Bytes per second of the idle cluster."""
    before = test.cluster.lab.traffic()
    time.sleep(IDLE)
    after = test.cluster.lab.traffic()
    seconds = after["at"] - before["at"]
    return {key: (after[key] - before[key]) / seconds for key in ("sent", "received")}


def daemons_counters(mounts):
    """Counters of all daemons of a row, added up, and the last one's placement."""
    totals = dict.fromkeys(
        ("hedges", "hedge_bytes", "bytes_duplicate", "retries", "local", "remote", "unknown"), 0)
    for mount in mounts:
        status = mount.status()
        totals["placement"] = status["placement"]
        for key in ("hedges", "hedge_bytes", "bytes_duplicate", "retries"):
            totals[key] += status["counters"][key]
        for key in ("local", "remote", "unknown"):
            totals[key] += sum(one[f"bytes_{key}"] for one in status["replicas"])
    return totals


def measure(test, row, file):
    """Measures one row once, with a file that nothing has read before."""
    plan = Plan(test, row, file)
    with contextlib.ExitStack() as stack:
        mounts = [stack.enter_context(
            Mount(test, plan.volume, nodes, placement=plan.placement, read=plan.read))
            for nodes, _ in plan.shares]
        idle = idle_traffic(test)
        jobs = [{"path": os_path(mount, file), "digests": file.digests, "blocks": blocks,
                 "depth": plan.depth}
                for mount, (_, blocks) in zip(mounts, plan.shares)]
        readers = work.Readers(test.commands, jobs)
        before = test.cluster.lab.traffic()
        readers.begin()
        results = readers.results()
        after = test.cluster.lab.traffic()
        counters = daemons_counters(mounts)
    seconds = max(one["ended"] for one in results) - min(one["begun"] for one in results)
    total = sum(one["bytes"] for one in results)
    failed = sum(one["failed"] + one["wrong"] for one in results)
    test.expect(f"reads of `{row}`", failed == 0 and total == file.size,
                f"{failed} failed or wrong, {total} of {file.size} bytes; "
                f"{[one['errors'] for one in results if one['errors']]}")
    return {"row": row, "seconds": round(seconds, 3), "mb_per_s": round(total / seconds / 1e6, 2),
            **traffic_between(before, after, idle), **counters,
            "idle_bytes_per_s": round(idle["sent"]),
            "shares": [sum(end - first for first, end in blocks) for _, blocks in plan.shares]}


def os_path(mount, file):
    """A path for a job of a worker."""
    return mount.path(file).decode("utf-8", "surrogateescape")


def rates(test):
    """All rounds. Returns the medians of each row."""
    rows = list(ROWS)
    found = {row: [] for row in rows}
    for number in range(test.options.rounds):
        say(f"round {number + 1} of {test.options.rounds}: making {len(rows)} files")
        files = {row: test.cluster.make_large(f"{row}-{number}", test.options.mib)
                 for row in rows}
        test.cluster.settle()
        shift = number % len(rows)
        for row in rows[shift:] + rows[:shift]:
            result = measure(test, row, files[row])
            say(f"{row}: {result['mb_per_s']} MB/s, {result['inter_node_bytes'] / 1e6:.1f} MB "
                f"between nodes, {result['hedges']} hedges")
            found[row].append({"round": number + 1, **result})
        for file in files.values():
            test.cluster.remove(file)
    test.results["measurements"] = [one for row in rows for one in found[row]]
    return {row: medians(found[row]) for row in rows}


def medians(results):
    """The median of each number."""
    keys = ("seconds", "mb_per_s", "link_bytes", "inter_node_bytes", "hedges", "hedge_bytes",
            "bytes_duplicate")
    return {key: statistics.median(one[key] for one in results) for key in keys}
