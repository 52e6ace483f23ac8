"""Tests of the whole program with real engines, the fake driver, and failures."""
