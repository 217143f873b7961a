"""Files of unusual names and contents, which all clusters get."""

import os

from . import work
from .cluster import TestFile

# Above four segments: fanfs asks for the placement of such files. The last block is not full.
SIZE = (9 << 20) + 12345
SPARSE = 24 << 20
NAMES = {
    b"name with spaces": "spaces in its name",
    b"line\nfeed": "a line feed in its name",
    "\u00fcml\u00e4ut \u65e5\u672c".encode(): "a name that is not ASCII",
    b"not \xff\xfe UTF-8": "a name that is not UTF-8",
}


def random_file(cluster, volume, path, what, size=SIZE, **options):
    """A file of random bytes."""
    file = TestFile(volume, path, what, size, **options)
    file.digests = work.write(cluster.commands, cluster.native(file), size)
    return file


def directory(cluster, volume, path):
    """A directory, as the cluster's own client sees it."""
    full = os.path.join(os.fsencode(volume.native), path)
    cluster.commands.run(["mkdir", "-p", "--", full], limit=60)
    return full


def sparse(cluster, volume):
    """A file with data in its middle only."""
    file = TestFile(volume, b"sparse", "sparse", SPARSE)
    full = cluster.native(file)
    cluster.commands.run(["truncate", "-s", str(SPARSE), "--", full], limit=60)
    cluster.commands.run(["dd", "if=/dev/urandom", b"of=" + full, "bs=1M", "count=3", "seek=10",
                          "conv=notrunc", "status=none"], limit=60)
    return file


def renamed(cluster, volume):
    """A file that is renamed after it was written."""
    file = random_file(cluster, volume, b"before", "renamed")
    before = cluster.native(file)
    file.path = b"after the rename"
    cluster.commands.run(["mv", "--", before, cluster.native(file)], limit=60)
    return file


def make(cluster, volume):
    """All of them."""
    files = [
        random_file(cluster, volume, b"empty", "empty", 0, may_be_unknown=True),
        random_file(cluster, volume, b"one", "one byte", 1, may_be_unknown=True),
        sparse(cluster, volume),
        renamed(cluster, volume),
    ]
    return files + [random_file(cluster, volume, path, what) for path, what in NAMES.items()]
