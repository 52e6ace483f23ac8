"""Access control: Host and origin rules for every request, and a login for servers that other machines reach.

Input: the head of a request. Output: a client identity, or a refusal. An open server (loopback, no login) has
no identities. The host and origin rules apply to it too, because any web page in the user's browser can send
requests to a loopback address.
"""
