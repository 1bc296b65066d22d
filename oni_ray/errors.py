"""The one exception whose message is written for the person at the keyboard.

Code raises `UserError` for bad input (a config key, a path, a GPU that is not there, a URL that does not answer);
the command line prints its text without a traceback and exits with status 2, or 130 where the user interrupted.
"""

from __future__ import annotations


class UserError(Exception):
    """One clear sentence that says what is wrong and what to do about it."""


class Interrupted(UserError):
    """The user interrupted before there was anything to keep; the command ends with status 130."""
