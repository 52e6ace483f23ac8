"""The whole program against the outside: real engines, the fake driver, and what goes wrong in between."""
