"""The steps of the test, for each number of copies:

1. start the cluster, and make files of unusual names, contents and layouts;
2. compare contents and placement with the cluster's own client and tool;
3. measure rates (measure.py);
4. kill daemons and move data while a file is read (faults.py).

Content, placement and failed reads decide the exit status. Rates do not.
"""

import json
import platform
import sys
import time
import traceback

from . import compare, faults, measure, options as arguments, report, sandbox
from .cluster import all_nodes
from .commands import Commands, Failure, say


class Test:
    """One run with one number of copies."""

    nodes = all_nodes()

    def __init__(self, options, commands, room, cluster):
        self.options = options
        self.commands = commands
        self.room = room
        self.cluster = cluster
        self.results = {"copies": cluster.copies}
        self.failed = []
        self.number = 0

    def next_number(self):
        """A number that names one thing of this run."""
        self.number += 1
        return self.number

    def placement(self, volume):
        """The [placement] section to test."""
        if self.options.placement:
            text = self.options.placement.read_text()
            return text.replace("@NATIVE@", str(volume.native)) + "\n"
        return self.cluster.placement(volume)

    def expect(self, what, well, detail=""):
        """Records an expectation."""
        self.results.setdefault("expectations", []).append(
            {"what": what, "well": bool(well), "detail": detail})
        if not well:
            self.failed.append(what)
            print(f"  NOT WELL: {what}: {detail}", flush=True)

    def run(self):
        """All steps, on a cluster that runs."""
        self.results["versions"] = self.cluster.versions()
        only = self.options.only
        if only in (None, "files"):
            odd = self.cluster.make_odd_files()
            odd.append(self.cluster.make_large("large", self.options.mib))
            self.cluster.settle()
            compare.all_files(self, odd)
            self.cluster.remove(odd[-1])
        if only in (None, "rates"):
            rows = measure.rates(self)
            self.results["medians"], self.results["targets"] = rows, report.targets(rows)
            report.show(self.cluster.script, self.cluster.copies, self.options, rows,
                        self.results["targets"])
        if only in (None, "faults"):
            faults.all_faults(self)


def run_copies(kind, options, commands, room, copies):
    """One number of copies, from the cluster's start to its end. Returns its results."""
    place = room / f"c{copies}"
    for name in ("mnt", "log"):
        (place / name).mkdir(parents=True)
    cluster = kind(commands, place / "lab", copies, options)
    test = Test(options, commands, place, cluster)
    print(f"\n## {kind.script}: {copies} {'copy' if copies == 1 else 'copies'}\n", flush=True)
    commands.on_limit = lambda: sandbox.abort_mounts(place / "mnt")
    begun = time.monotonic()
    try:
        cluster.start()
        test.run()
    except Failure as failure:
        test.expect("the test can continue", False, str(failure))
    except Exception:       # a defect of the harness, which must not hide the other results
        test.expect("the harness works", False, traceback.format_exc())
    finally:
        commands.end_all()
        try:
            cluster.stop()
        except Failure as failure:
            test.expect("the cluster ends", False, str(failure))
        # A file system that hangs even for `umount` ends here.
        sandbox.abort_mounts(place)
    test.results["seconds"] = round(time.monotonic() - begun)
    test.results["failed"] = test.failed
    return test.results


def inside(kind, options):
    """The whole test, inside the namespaces."""
    sandbox.enter()
    commands = Commands()
    results = {
        "cluster": kind.script, "arguments": sys.argv[1:], "kernel": platform.release(),
        "fanfs": commands.run([str(options.fanfs), "--version"], limit=20).decode().strip(),
        "options": {"mib": options.mib, "rate": options.rate, "rounds": options.rounds,
                    "lab": dict(options.lab)},
        "runs": [], "commands": commands.recorded,
    }
    try:
        for copies in options.copies:
            results["runs"].append(
                run_copies(kind, options, commands, sandbox.room(), copies))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    failed = [what for run in results["runs"] for what in run["failed"]]
    print("all is well" if not failed else f"{len(failed)} expectations failed: "
          + "; ".join(failed[:10]))
    return 1 if failed else 0


def main(kind, description):
    """The whole program. Returns its exit status."""
    options = arguments.parse(description)
    try:
        kind.check_programs()
    except Failure as failure:
        print(f"{kind.script}: {failure}", file=sys.stderr)
        return 2
    if sandbox.room() is None:
        return sandbox.run(keep=options.keep)
    return inside(kind, options)
