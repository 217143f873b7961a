"""Compares contents and placement: fanfs against the cluster's own client and tool."""

from . import work
from .commands import Failure, say
from .mount import Mount


def contents(test, mount, files):
    """Compares the contents of files, byte for byte. Returns a list of differences."""
    pairs = [(mount.path(file), test.cluster.content_for_comparison(file)) for file in files]
    size = sum(file.size for file in files)
    results = work.compare(test.commands, pairs, 2 * size + 100_000_000)
    return [f"{file.shown()}: {result}" for file, result in zip(files, results) if result]


def relation(chunk, nodes):
    """How fanfs's nodes of a part of a chunk compare: same, unknown or differs."""
    if not nodes:
        return "unknown" if chunk.nodes else "same"
    first_is_right = not chunk.ordered or nodes[0] == chunk.nodes[0]
    return "same" if first_is_right and set(nodes) == set(chunk.nodes) else "differs"


def placement_of(chunks, listed):
    """Compares the cluster's chunks with those that fanfs lists.

    A chunk differs if any part of it does; it is unknown if fanfs omits a part of it, or all.
    """
    counts = {"same": 0, "differs": 0, "unknown": 0}
    examples = []
    listed = sorted(listed, key=lambda part: part["start"])
    for chunk in chunks:
        found, covered = set(), 0
        for part in listed:
            overlap = min(part["end"], chunk.end) - max(part["start"], chunk.start)
            if overlap <= 0:
                continue
            covered += overlap
            result = relation(chunk, part["nodes"])
            found.add(result)
            if result == "differs" and len(examples) < 3:
                examples.append({"start": chunk.start, "end": chunk.end,
                                 "cluster": list(chunk.nodes), "fanfs": part["nodes"]})
        if covered < chunk.end - chunk.start:
            found.add("unknown")
        worst = next(kind for kind in ("differs", "unknown", "same") if kind in found)
        counts[worst] += 1
    return {"chunks": len(chunks), **counts, "examples": examples}


def placement(test, mount, file):
    """Compares the placement of one file."""
    try:
        chunks = test.cluster.chunks(file)
    except Failure as failure:
        test.expect(f"the cluster's own answer about {file.shown()}", False, str(failure))
        chunks = []
    try:
        explained = mount.explain(file)
    except Failure as failure:
        return {"chunks": len(chunks), "same": 0, "differs": 0, "unknown": len(chunks),
                "examples": [], "failure": str(failure)}
    result = placement_of(chunks, explained["chunk_map"])
    if result["unknown"] and explained.get("findings"):
        result["findings"] = explained["findings"][:2]
    return result


def judge(test, what, file, result):
    """Records the result of `placement`, and whether it is acceptable."""
    known = file.may_be_unknown or not result["unknown"]
    well = known and not result["differs"]
    text = (f"{result['chunks']} chunks, {result['differs']} differ, "
            f"{result['unknown']} unknown{' (allowed)' if file.may_be_unknown else ''}")
    print(f"  {what} {file.volume.name}/{file.shown()} ({file.what}): {text}", flush=True)
    for example in result["examples"]:
        print(f"    bytes {example['start']}-{example['end']}: the cluster says "
              f"{example['cluster']}, fanfs {example['fanfs']}")
    for line in [result.get("failure")] + result.get("findings", []):
        if line:
            print(f"    {line}")
    test.expect(f"{what} of {file.shown()}", well, text)
    test.results.setdefault("placement", []).append(
        {"when": what, "volume": file.volume.name, "file": file.shown(), "what": file.what,
         "allowed_unknown": file.may_be_unknown, **result})


def all_files(test, files):
    """Content and placement of files of all volumes."""
    for volume in test.cluster.volumes:
        mine = [file for file in files if file.volume == volume]
        if not mine:
            continue
        say(f"content and placement: {len(mine)} files of {volume.name}")
        with Mount(test, volume, test.nodes, placement=test.placement(volume)) as mount:
            different = contents(test, mount, mine)
            for line in different:
                print(f"  content differs: {line}")
            test.expect(f"contents of {volume.name}", not different, "; ".join(different[:3]))
            for file in mine:
                judge(test, "placement", file, placement(test, mount, file))
