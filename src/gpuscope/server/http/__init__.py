"""HTTP/1.1 for the agent and the server alike: asyncio's sockets, httptools' parser, coroutines as handlers.

`messages` is what handlers see, `routing` finds the handler, `connection` speaks the protocol, `listening`
opens and closes. Why it is our own: docs/decisions/0010-one-http-server.md.
"""
