"""Views of a fleet in a terminal: `snapshot`, `top` and `free`.

A document of `/api/live` goes in (from a server, an agent's metrics or this machine's own collector); lines of
styled text come out. Only `top_app` and its widgets import `textual`; no module here reads the driver, a file
or the network.
"""
