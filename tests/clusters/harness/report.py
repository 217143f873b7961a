"""The tables on standard output."""

from .measure import ROWS

WANTED_RATE, WANTED_BYTES = 0.95, 1.1


def reached(yes):
    """The word for a target, which decides nothing."""
    return "reached" if yes else "not reached"


def table(rows):
    """A markdown table of the medians."""
    lines = ["| row | seconds | MB/s | between nodes, MB | hedges | hedged, MB |",
             "|---|---:|---:|---:|---:|---:|"]
    for row, one in rows.items():
        lines.append(
            f"| `{row}`: {ROWS[row]} | {one['seconds']:.2f} | {one['mb_per_s']:.1f} | "
            f"{one['inter_node_bytes'] / 1e6:.1f} | {one['hedges']:.0f} | "
            f"{one['hedge_bytes'] / 1e6:.1f} |")
    return "\n".join(lines)


def targets(rows):
    """The two ratios, with their targets."""
    rate = rows["with"]["mb_per_s"] / max(rows["local"]["mb_per_s"], 1e-9)
    links = rows["with"]["link_bytes"] / max(rows["local"]["link_bytes"], 1)
    return {
        "rate_of_limit": round(rate, 4), "rate_reached": rate >= WANTED_RATE,
        "link_bytes_of_limit": round(links, 4), "bytes_reached": links <= WANTED_BYTES,
    }


def show(name, copies, options, rows, ratios):
    """Prints the results of one number of copies."""
    print(f"\n{name}, {copies} {'copy' if copies == 1 else 'copies'}, links of {options.rate}, "
          f"{options.mib} MiB, median of {options.rounds}:\n")
    print(table(rows))
    print(f"\n`with` / `local`, rate: {ratios['rate_of_limit']:.3f} (wanted: at least "
          f"{WANTED_RATE}): {reached(ratios['rate_reached'])}")
    print(f"`with` / `local`, bytes that the nodes send: {ratios['link_bytes_of_limit']:.3f} "
          f"(wanted: at most {WANTED_BYTES}): {reached(ratios['bytes_reached'])}\n", flush=True)
