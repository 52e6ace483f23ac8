"""Who may ask: Host and origin rules for everybody, and a login where the server is reached from outside.

In comes an HTTP request's head, out comes who it is, or a refusal in one sentence. Nobody is known on an open
server. What a newcomer would get wrong: the rules against other sites hold on an open loopback server as well,
because any page in the user's browser can send requests to it.
"""
