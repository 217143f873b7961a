"""The command line."""

import argparse
import os
import shutil
from pathlib import Path

from . import sandbox


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, and keeps lines as they are."""


def _numbers(text):
    numbers = [int(number) for number in text.split(",")]
    if not numbers or any(not 1 <= number <= 3 for number in numbers):
        raise argparse.ArgumentTypeError("numbers from 1 to 3, with commas")
    return numbers


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _setting(text):
    name, equals, value = text.partition("=")
    if not equals or not name.isupper():
        raise argparse.ArgumentTypeError("NAME=VALUE")
    return name, value


def _file(text):
    return Path(text).resolve()


def parse(description):
    """Reads the arguments. A wrong one ends the program with status 2."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=Help,
        epilog="Exit status: 0 all is well; 1 an expectation failed; 2 wrong usage.",
    )
    parser.add_argument("--fanfs", type=_file, metavar="FILE",
                        default=sandbox.checkout() / "target/release/fanfs", help="the program")
    parser.add_argument("--mib", type=_positive, default=300, help="size of a measured file, MiB")
    parser.add_argument("--rate", default="200mbit",
                        help="of each node's link, in tc's units; none: no limit")
    parser.add_argument("--copies", type=_numbers, default="1,2,3", metavar="LIST",
                        help="numbers of copies, with commas")
    parser.add_argument("--rounds", type=_positive, default=3, help="of the measurements")
    parser.add_argument("--quick", action="store_true",
                        help="two copies, one round, 100 MiB, no rebalance")
    parser.add_argument("--json", type=_file, metavar="FILE", help="write all results to FILE")
    parser.add_argument("--placement", type=_file, metavar="FILE",
                        help="a [placement] section to test in place of the cluster's provider; "
                             "@NATIVE@ is where the cluster's own client mounts the volume")
    parser.add_argument("--lab", type=_setting, action="append", metavar="NAME=VALUE", default=[],
                        help="a further setting of the lab; see labs/*")
    parser.add_argument("--only", choices=["files", "rates", "faults"], metavar="PART",
                        help="one part: files (content and placement), rates, or faults")
    parser.add_argument("--keep", action="store_true", help="keep the logs, in target/clusters.*")
    options = parser.parse_args()
    if options.quick:
        options.copies, options.rounds, options.mib = [2], 1, 100
    check(parser, options)
    return options


def check(parser, options):
    """Refuses what cannot work."""
    if not os.access(options.fanfs, os.X_OK):
        parser.error(f"{options.fanfs} is missing; build it: cargo build --release")
    if os.geteuid() != 0:
        parser.error("needs root")
    for program in ("unshare", "nsenter", "setpriv", "tc", "getfattr", "setfattr", "stat"):
        if not shutil.which(program):
            parser.error(f"{program} is missing; see the packages in labs/*")
    if options.placement and not options.placement.is_file():
        parser.error(f"{options.placement} is missing")
