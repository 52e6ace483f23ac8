"""GRES and TRES strings: `gpu:a100:2(IDX:0-1),shard:4` and `cpu=4,mem=8G,gres/gpu:a100=2`.

Every version writes them a little differently: `(S:0-1)` is the sockets, `(IDX:0,2-3)` the GPUs' indices,
`(IDX:N/A)` none, `gpu(CNT:2)` two without indices, and newer ones print the shards used of each GPU as
`(0/2,1/2)`. `(null)` and an empty text are none. A part that is not understood is left out; the rest counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import Gres, SlurmNode

# Slurm's hostlists: `gpu[1-3,7],login` becomes the names it stands for.
#
# Ranges keep their leading zeros, several brackets in one name multiply, and a name without brackets stands
# for itself. A list may stand for millions of names, so the caller gives a limit; text that is not a hostlist
# and a list beyond the limit raise ValueError.

MAX_HOSTS = 100_000
MAX_PLACEMENTS = 200_000  # of all jobs together: one for each node of each job
MAX_BRACKETS = 16  # in one hostlist expression of one name; each multiplies the names
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", re.ASCII)


def expand_hostlist(text: str, max_hosts: int = MAX_HOSTS) -> tuple[str, ...]:
    """The names in order. Raises ValueError for unbalanced brackets, a bad range, or too many names."""
    if "[" not in text and "]" not in text and "," not in text:  # one node, as most jobs have
        return (text,) if text else ()
    names: list[str] = []
    for part in _split_outside_brackets(text):
        if part.count("[") > MAX_BRACKETS:
            raise ValueError(f"hostlist {text[:80]!r} has more than {MAX_BRACKETS} brackets in one name")
        names.extend(islice(_expand(part), max_hosts - len(names) + 1))
        if len(names) > max_hosts:
            raise ValueError(f"hostlist {text[:80]!r} stands for more than {max_hosts} nodes")
    return tuple(names)


def _split_outside_brackets(text: str) -> Iterator[str]:
    start = depth = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            if position > start:
                yield text[start:position]
            start = position + 1
        if depth not in (0, 1):
            raise ValueError(f"hostlist {text[:80]!r} has unbalanced brackets")
    if depth:
        raise ValueError(f"hostlist {text[:80]!r} has unbalanced brackets")
    if start < len(text):
        yield text[start:]


def _expand(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    inside, _, tail = rest.partition("]")
    for number in _numbers(inside):
        for end in _expand(tail):
            yield head + number + end
    if not inside:
        raise ValueError(f"hostlist {part[:80]!r} has empty brackets")


def _numbers(inside: str) -> Iterator[str]:
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise ValueError(f"hostlist range {piece[:40]!r} is not N or N-M")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"hostlist range {piece[:40]!r} counts down")
        width = len(first)
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{width}d}"


MAX_INDEX = 4096
MAX_CHARACTERS = 4096
"""A longer text is not parsed, and not kept by the caches: a node with 16 kinds of GPU instances has 600."""
_COUNT = re.compile(r"([0-9]{1,15})([KMGTP]?)", re.ASCII)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_GPU_KINDS = frozenset({"gpu", "shard", "mps"})


def parse_gres(text: str) -> tuple[Gres, ...]:
    """The GPUs, shards and MPS shares in a GRES string, also those with a count of 0."""
    return () if len(text) > MAX_CHARACTERS else _parse_gres(text)


@lru_cache(maxsize=4096)  # a cluster has few different strings
def _parse_gres(text: str) -> tuple[Gres, ...]:
    if not text or text in ("(null)", "N/A"):
        return ()
    return tuple(gres for part in _split(text) if (gres := _parse_part(part)) is not None)


def parse_held(text: str) -> Maybe[tuple[Gres, ...]]:
    """What a job holds on one node: `gpu:h100:0(IDX:),gpu:a100:1(IDX:3)` is one GPU.

    ABSENT if it has GRES and every count is 0: so Slurm describes a job that it started after a restart of
    slurmctld, before the node's slurmd had registered again (seen with 22.05).
    """
    named = parse_gres(text)
    held = tuple(gres for gres in named if gres.count)
    return held if held or not named else ABSENT


def uncounted_shares(text: str) -> frozenset[tuple[str, str]]:
    """(kind, model) of the shards and MPS shares in a node's GRES in use whose number it does not tell.

    Up to 22.05 `mps:a100:1(IDX:0)` is one GPU of which jobs have some shares; `mps:a100:0(IDX:N/A)` is none.
    """
    return frozenset() if len(text) > MAX_CHARACTERS else _uncounted_shares(text)


@lru_cache(maxsize=4096)
def _uncounted_shares(text: str) -> frozenset[tuple[str, str]]:
    named = (gres for part in _split(text) if "(IDX:" in part and (gres := _parse_part(part)) is not None)
    return frozenset((gres.kind, gres.model) for gres in named if gres.kind != "gpu" and gres.count)


def _split(text: str) -> Iterator[str]:
    """Parts between commas that are outside parentheses."""
    start = depth = 0
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth = max(0, depth - 1)
        elif character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _parse_part(part: str) -> Gres | None:
    name, parenthesis, inside = part.partition("(")
    words = name.removeprefix("gres/").removeprefix("gres:").split(":")
    kind = words[0]
    if kind not in _GPU_KINDS or len(words) > 3:
        return None
    if inside.startswith("CNT:"):  # without `File=` in gres.conf: `gpu:a100(CNT:2)`
        listed = parse_count(inside.removeprefix("CNT:").rstrip(")"))
        return None if listed is None or len(words) > 2 else Gres(kind, "".join(words[1:]), listed)
    if len(words) == 1:
        return Gres(kind, "", 1)
    model = words[1] if len(words) == 3 else ""
    count = parse_count(words[-1])
    if count is None:  # `gpu:a100` is one GPU of a type
        return Gres(kind, words[1], 1) if len(words) == 2 and words[1] else None
    return Gres(kind, model, count, _indices(inside) if parenthesis else ABSENT)


def _indices(inside: str) -> Maybe[tuple[int, ...]]:
    """`IDX:0,2-3)` is (0, 2, 3); `0/2,1/2)`, the shards used of each GPU, is (1,); sockets are not indices."""
    text = inside.partition(")")[0]
    if "/" in text and text[:3] != "IDX":
        return _indices_of_shards(text)
    label, _, listed = text.partition(":")
    if label != "IDX" or listed == "N/A":
        return ABSENT
    found: list[int] = []
    for piece in listed.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            if piece:
                return ABSENT
            continue
        end = int(last) if dash else int(first)
        if end > MAX_INDEX or end < int(first):
            return ABSENT
        found.extend(range(int(first), end + 1))
    return tuple(found)


def _indices_of_shards(text: str) -> Maybe[tuple[int, ...]]:
    used = [piece.partition("/")[0] for piece in text.split(",")[:MAX_INDEX]]
    if not all(count == "-" or count.isdecimal() for count in used):
        return ABSENT
    return tuple(index for index, count in enumerate(used) if count != "-" and int(count) > 0)


def parse_count(text: str) -> int | None:
    """`4` or `2K`; None if it is not a count."""
    match = _COUNT.fullmatch(text)
    return None if match is None else int(match[1]) * _UNITS[match[2]]


def parse_tres(text: str) -> dict[str, str]:
    """TRES by name: `{"cpu": "4", "gres/gpu:a100": "2"}`."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): value for name, equals, value in pairs if equals and name.strip()}


def gres_of_tres(text: str) -> tuple[Gres, ...]:
    """The GPUs in a TRES string.

    `gres/gpu=3` is the sum over all types; typed entries exist only for types that AccountingStorageTRES lists.
    What the typed ones do not cover has no model.
    """
    return () if len(text) > MAX_CHARACTERS else _gres_of_tres(text)


@lru_cache(maxsize=4096)
def _gres_of_tres(text: str) -> tuple[Gres, ...]:
    if "gres/" not in text:
        return ()
    totals: Counter[str] = Counter()
    typed: dict[tuple[str, str], int] = {}
    for name, value in parse_tres(text).items():
        kind, colon, model = name.removeprefix("gres/").partition(":")
        count = parse_count(value)
        if not name.startswith("gres/") or kind not in _GPU_KINDS or count is None:
            continue
        if colon:
            typed[kind, model] = count
        else:
            totals[kind] = count
    for (kind, _), count in typed.items():
        totals[kind] -= count
    rest = {(kind, ""): count for kind, count in totals.items() if count > 0}
    return tuple(Gres(kind, model, count) for (kind, model), count in {**typed, **rest}.items())


def reserved_gpus(
    tres: str, names: Sequence[str], nodes: Mapping[str, SlurmNode], *, some_cores: bool
) -> Maybe[int]:
    """The GPUs of a reservation: those in its TRES, or those of its nodes if it has whole nodes.

    `some_cores`: Slurm lists the cores it has of each node, because they are not all. 22.05 does not always:
    with fewer CPUs than the nodes have, some may be set aside for the system, so the GPUs are not known.
    """
    if by_tres := gres_of_tres(tres):
        return sum(gres.count for gres in by_tres if gres.kind == "gpu")
    if some_cores or not names:
        return 0
    reserved = parse_count(parse_tres(tres).get("cpu", ""))
    known = [node for name in names if (node := nodes.get(name)) is not None and node.cpus is not ABSENT]
    cpus = sum(node.cpus for node in known if node.cpus is not ABSENT)
    if len(known) < len(names) or reserved is None or reserved < cpus:
        return ABSENT
    return sum(gres.count for node in known for gres in node.gres if gres.kind == "gpu")
