"""A lab script (labs/*): three nodes and a client, each in a network of its own."""

import time
from pathlib import Path

from .commands import Failure, say

LABS = Path(__file__).resolve().parents[1] / "labs"
NODES = ("n1", "n2", "n3")


def counter(text, device, which):
    """A device's bytes in the text of /proc/net/dev: `which` is rx or tx."""
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            return int(numbers.split()[0 if which == "rx" else 8])
    raise Failure(f"no device {device} in /proc/net/dev")


class Lab:
    """A lab below a directory."""

    def __init__(self, commands, script, directory):
        self.commands = commands
        self.script = str(LABS / script)
        self.dir = Path(directory)
        self.is_up = False

    def up(self, **settings):
        """Starts it. Settings are variables of its environment."""
        say(f"starting the lab {Path(self.script).name} ({settings})")
        self.is_up = True
        self.commands.run([self.script, "up", str(self.dir)], limit=400,
                          env={name: str(value) for name, value in settings.items()})

    def down(self):
        """Ends it."""
        if self.is_up:
            say("ending the lab")
            self.is_up = False
            self.commands.run([self.script, "down", str(self.dir)], limit=150, check=False)

    def words(self, verb, *arguments):
        """The words of a command of the lab."""
        return [self.script, verb, str(self.dir), *arguments]

    def client(self, *command, **options):
        """Runs a command in the client's network."""
        return self.commands.run(self.words("exec", *command), **options)

    def on(self, node, *command, **options):
        """Runs a command on a node."""
        return self.commands.run(self.words("on", node, *command), **options)

    def kill(self, name):
        """Kills a daemon."""
        self.commands.run(self.words("kill", name), limit=60)

    def start(self, name):
        """Starts a daemon again."""
        self.commands.run(self.words("start", name), limit=90)

    def address(self, node):
        """A node's address."""
        return f"10.77.0.{node[1:]}"

    def traffic(self):
        """The bytes so far: `sent` by all nodes, `received` by the client."""
        read = ("cat", "/proc/net/dev")
        sent = sum(counter(self.on(node, *read).decode(), "eth0", "tx") for node in NODES)
        received = counter(self.client(*read).decode(), "br0", "rx")
        return {"sent": sent, "received": received, "at": time.monotonic()}
