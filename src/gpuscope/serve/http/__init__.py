"""An HTTP/1.1 server for the agent and the server: asyncio's sockets, httptools' parser, coroutine handlers.

`messages` defines requests and responses, `routing` selects the handler, `connection` implements the protocol,
`server` listens and accepts. docs/decisions/0010-one-http-server.md says why the project has its own.
"""
