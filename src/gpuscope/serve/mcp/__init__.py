"""The Model Context Protocol: an assistant asks the server, read-only, over `POST /mcp`.

`protocol` speaks JSON-RPC; `tools` is the table of what can be asked; `own_api` asks this server's own routes,
so that an assistant sees the numbers that the page and the command line show.
"""
