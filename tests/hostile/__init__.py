"""Attacks on a running gpuscope, over real sockets: `catalogue` lists them, `attacks_*` send them."""
