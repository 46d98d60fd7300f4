"""Helpers that tests of several folders share: `from support.… import …`."""
