"""Roles of clients, and the role that each change requires.

A viewer reads. An editor also silences alerts, sends alerts, samples and test messages. An admin may do
everything; a change that is not listed here requires an admin, so a route added elsewhere is closed at first.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from gpuscope.serve.login.client_request import ClientRequest
from gpuscope.serve.login.origin_rules import is_change


class ClientRole(StrEnum):
    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"

    def permits(self, required: ClientRole) -> bool:
        ranks = list(ClientRole)
        return ranks.index(self) >= ranks.index(required)


WRITE_PATH: Final = "/api/v1/write"
_SENDS: Final = re.compile(r"/api/v1/write|(/alertmanager)?/api/v2/alerts")
"""Sent by programs, not by people."""
_CHANGES: Final = (
    (("POST",), re.compile(r"/api/logout"), ClientRole.VIEWER),
    (("POST",), _SENDS, ClientRole.EDITOR),
    (("POST",), re.compile(r"(/alertmanager)?/api/v2/silences"), ClientRole.EDITOR),
    (("DELETE",), re.compile(r"(/alertmanager)?/api/v2/silence/[^/]+"), ClientRole.EDITOR),
    (("POST",), re.compile(r"/api/notify/test"), ClientRole.EDITOR),
    (("POST",), re.compile(r"/api/demo/.*"), ClientRole.EDITOR),
)
_PRIVATE_READS: Final = re.compile(r"/api/(users|audit)")
"""Who may log in and what they did: for admins only."""


def required_role(client_request: ClientRequest) -> ClientRole:
    if not is_change(client_request):
        is_private = _PRIVATE_READS.fullmatch(client_request.path) is not None
        return ClientRole.ADMIN if is_private else ClientRole.VIEWER
    for methods, path, role in _CHANGES:
        if client_request.method in methods and path.fullmatch(client_request.path):
            return role
    return ClientRole.ADMIN


def is_send(client_request: ClientRequest) -> bool:
    """True for samples and alerts that a program sends."""
    return client_request.method == "POST" and _SENDS.fullmatch(client_request.path) is not None
