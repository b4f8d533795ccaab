"""YAML that all its readers take for the same: keys in the order given, texts of several lines as blocks."""

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

# Any other text is quoted. PyYAML would leave `1e-3`, `0o17` and `y` bare, which it reads as texts itself, but Go's
# reader (kubectl) takes them for numbers and truth values.
_PLAIN = re.compile(r"(?![yYnN]$)[A-Za-z_/][A-Za-z0-9_./-]*")


class _Dumper(yaml.SafeDumper):
    """The safe dumper, with texts written by `_text`."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(value) is not None
    style = "|" if "\n" in value else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(table: Mapping[str, Any]) -> str:
    """Return a table of texts, numbers, truth values, lists and tables as one YAML document."""
    text: str = yaml.dump(table, Dumper=_Dumper, sort_keys=False, width=math.inf, allow_unicode=True)
    return text
