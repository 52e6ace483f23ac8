"""`sshare -a`: the tree of accounts and users with their shares, usage and fair-share factor.

Input: sshare's text; output: associations in its order. The indentation of the account is its depth in the
tree. Under Fair Tree an account has no fair-share factor, only its users have; without slurmdbd the text is
empty, and so is the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.agent.sources.slurm.values import parse_number
from gpuscope.model.readings.slurm import FairShare

FIELDS = ("Account", "User", "RawShares", "NormShares", "RawUsage", "EffectvUsage", "FairShare", "LevelFS")
ARGUMENTS = ("-a", "-n", "-P", "-o")
MAX_ASSOCIATIONS = 100_000


def parse_sshare(text: str, fields: Sequence[str] = FIELDS) -> tuple[FairShare, ...]:
    shares: list[FairShare] = []
    ancestors: list[str] = []  # the account at each depth above the current line
    for line in text.split("\n", MAX_ASSOCIATIONS)[:MAX_ASSOCIATIONS]:
        # From the right: an account's name may have `|` in it, the columns behind it do not.
        cells = line.rsplit("|", len(fields) - 1)
        if len(cells) < len(fields):
            continue
        row = dict(zip(fields, cells, strict=False))
        depth = len(row["Account"]) - len(row["Account"].lstrip(" "))
        account, user = row["Account"].strip(), row["User"].strip()
        del ancestors[depth:]
        parent = ancestors[-1] if ancestors and not user else ""
        if not user:
            ancestors.append(account)
        shares.append(
            FairShare(
                account=account,
                parent=parent,
                user=user,
                raw_shares=parse_number(row["RawShares"]),
                norm_shares=parse_number(row["NormShares"]),
                raw_usage=parse_number(row["RawUsage"]),
                effective_usage=parse_number(row["EffectvUsage"]),
                fair_share=parse_number(row["FairShare"]),
                level_fs=parse_number(row.get("LevelFS", "")),
            )
        )
    return tuple(shares)
