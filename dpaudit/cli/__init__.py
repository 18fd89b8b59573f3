"""The command line: it parses, calls and prints. Nothing heavy is imported before a command needs it."""

from .entry import main

__all__ = ["main"]
