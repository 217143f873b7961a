"""The part of the test that each kind of cluster provides."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from . import work
from .commands import Failure
from .lab import NODES, Lab


@dataclass(frozen=True)
class Chunk:
    """A part of a file, as the cluster's own tool describes it.

    If `ordered`, the first node serves all reads of it, and fanfs must name that node first.
    """

    start: int
    end: int
    nodes: tuple
    ordered: bool = False

    @property
    def servers(self):
        """The nodes that read it without another node."""
        return self.nodes[:1] if self.ordered else self.nodes


@dataclass(frozen=True)
class Volume:
    """A file system of the cluster: its export, and the cluster's own mount of it."""

    name: str
    export: str
    native: Path


@dataclass
class TestFile:
    """A file of the test. If `may_be_unknown`, fanfs need not know its placement."""

    volume: Volume
    path: bytes
    what: str
    size: int = 0
    may_be_unknown: bool = False
    digests: list = field(default_factory=list)

    def shown(self):
        """Its path, as text on one line."""
        try:
            return repr(self.path.decode())[1:-1]
        except UnicodeDecodeError:
            return repr(self.path)[2:-1]


class Cluster:
    """A cluster in its lab. Subclasses define the attributes and the methods that raise here."""

    # The lab's script, and programs that must be installed.
    script = None
    programs = ()

    def __init__(self, commands, directory, copies, options):
        self.commands = commands
        self.copies = copies
        self.settings = {"RATE": options.rate, "COPIES": copies, **dict(options.lab)}
        self.lab = Lab(commands, self.script, directory)

    @classmethod
    def check_programs(cls):
        """Names a program that is missing."""
        for program in cls.programs:
            if not shutil.which(program):
                raise Failure(f"{program} is missing; see the packages in labs/{cls.script}")

    # Start and end.

    def start(self):
        """Starts the cluster."""
        self.lab.up(**self.settings)
        self.prepare()

    def stop(self):
        """Ends it."""
        self.lab.down()

    def prepare(self):
        """Settings after the start."""

    def settle(self):
        """Waits until the cluster moves no data and no service."""
        raise NotImplementedError

    def versions(self):
        """The versions of its software: a dictionary."""
        raise NotImplementedError

    # Files.

    @property
    def volumes(self):
        """All its volumes. The first one is measured."""
        raise NotImplementedError

    def native(self, file):
        """The path of a file in the cluster's own mount."""
        return os.path.join(os.fsencode(file.volume.native), file.path)

    def make_large(self, name, mib):
        """Makes a file of random bytes on the first volume."""
        file = TestFile(self.volumes[0], name.encode(), "large", mib << 20)
        file.digests = work.write(self.commands, self.native(file), file.size)
        return file

    def make_odd_files(self):
        """Makes files of unusual names, contents and layouts, and returns them."""
        raise NotImplementedError

    def remove(self, file):
        """Removes a file."""
        self.commands.run(["rm", "-f", "--", self.native(file)], limit=60)

    def content_for_comparison(self, file):
        """A path whose content is the file's, read by the cluster's own client."""
        return self.native(file)

    # Placement.

    def chunks(self, file):
        """The chunks of a file, from the cluster's own tool."""
        raise NotImplementedError

    def placement(self, volume):
        """The [placement] section of fanfs's configuration."""
        raise NotImplementedError

    def replica(self, volume, node):
        """The [[replica]] section of a node's gateway."""
        address = self.lab.address(node)
        return (f'[[replica]]\naddress = "nfs://{address}:2049/{volume.export}"\n'
                f'mount_port = 20048\nnode = "{node}"\n')

    # Faults. NODES are those of the lab.

    def storage_daemon(self, node):
        """The lab's name of a node's storage daemon."""
        raise NotImplementedError

    def gateway_daemon(self, node):
        """The lab's name of a node's gateway."""
        return f"ganesha-{node}"

    def rebalances(self, file):
        """Ways to move the data of a file: pairs of a name and a function that starts it."""
        raise NotImplementedError


def all_nodes():
    """The nodes of each lab."""
    return NODES
