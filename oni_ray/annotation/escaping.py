"""Makes captions harmless before they enter a prompt: text from inside a game is data, never part of the instruction.

Prompts fill their templates with `fill`, which puts every value in at once, so that a caption which spells a
placeholder is not replaced a second time.
"""

from __future__ import annotations

import re
import unicodedata

MAX_CAPTION_LENGTH = 256
# What starts a control token in the models in use: <|im_start|>, </s>, <start_of_turn>, [INST], [/INST], [[tag]].
_CONTROL = re.compile(r"<(?=[|/A-Za-z])|\[(?=[\[/A-Z])")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def escape_caption(caption: str) -> str:
    r"""A caption as harmless text of one line of at most 256 of its characters.

    Quotes, backslashes, control characters and the starts of control tokens become escapes: `\"`, `\n`, `\x1b`, `\x3c`.
    """
    text = caption[:MAX_CAPTION_LENGTH].replace("\\", "\\\\").replace('"', '\\"')
    text = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
    return escape_invisible(text)


def escape_invisible(text: str) -> str:
    """The text with control, format and unassigned characters as escapes, so that it can be shown anywhere."""
    return "".join(_escape_character(character) for character in text)


def fill(template: str, **values: str) -> str:
    """The template with each {name} among `values` replaced, in one pass; other braces stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def _escape_character(character: str) -> str:
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return character
    if character == "\n":
        return "\\n"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
