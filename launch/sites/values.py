"""Values of site files. All are rendered into scripts: each text is one line, each number in a range, none a secret."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from common.utils.command_line import MOST

_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE")
# Launchers put host names and paths into lines for shells as they are; a leading hyphen would be a flag of ssh.
HOST_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", flags=re.ASCII)
PLAIN_PATH = re.compile(r"[\w/.+@=,:~-]+")


def _one_line(text: str) -> str:
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("a text must be one line without control characters")
    return text


def _no_secret(name: str) -> str:
    if any(secret in name.upper() for secret in _SECRETS):
        raise ValueError("scripts would show this secret to everybody: use the cloud's secret store, or your own shell")
    return name


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text must not be empty: leave the key out")
    return text


def _word(text: str) -> str:
    if not text or re.search(r"\s", text):
        raise ValueError("a word without blanks is expected")
    return text


def matching(pattern: str, words: str, *, longest: int | None = None) -> Any:
    """Return a validator that refuses, in words, what is no text or does not match a pattern.

    Args:
        pattern: of the whole text.
        words: what is expected, with an example.
        longest: number of characters.
    """

    def check(value: object) -> object:
        fits = isinstance(value, str) and re.fullmatch(pattern, value)
        if not fits or (longest is not None and len(str(value)) > longest):
            raise ValueError(words)
        return value

    return BeforeValidator(check)


Line = Annotated[str, AfterValidator(_one_line)]
Text = Annotated[Line, AfterValidator(_text)]
Word = Annotated[Line, AfterValidator(_word)]
_VARIABLE = matching(r"[A-Za-z_][A-Za-z0-9_]*", 'write the name of a variable, such as "NCCL_DEBUG"')
VariableName = Annotated[str, _VARIABLE, AfterValidator(_no_secret)]
Slots = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9_.-]*(:[1-9][0-9]{0,5})?", 'write a host and its slots, such as "node1:4"')
]
PlainPath = Annotated[
    str, matching(PLAIN_PATH.pattern, 'write a path without blanks and special characters, such as "/opt/openmpi"')
]
# Of Kubernetes, as IsDNS1123Label, IsDNS1123Subdomain and IsValidLabelValue of k8s.io/apimachinery.
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = 'write a name of lower-case letters, digits and "-", such as'
Label = Annotated[str, matching(_LABEL, f'{_NAME} "team-a"', longest=63)]
Subdomain = Annotated[str, matching(rf"{_LABEL}(\.{_LABEL})*", f'{_NAME} "registry-1"', longest=253)]
LabelValue = Annotated[
    str,
    matching(
        r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
        'write letters, digits, "-", "_" and ".", such as "p5"',
        longest=63,
    ),
]
MountPath = Annotated[str, matching(r"(/[^/:\x00-\x1f]+)+", 'write an absolute path without ":", such as "/data"')]
Bind = Annotated[str, matching(r"/[^,\x00-\x1f\x7f]*", 'write an absolute path without commas, such as "/data:/data"')]
Image = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", 'write an image, such as "ghcr.io/me/twins:1"')]
SiteName = Annotated[str, matching(r"[\w.+-]{1,100}", 'name the file of a site in letters and digits, such as "ours"')]
Bucket = Annotated[
    str, matching(r"[a-z0-9]+://[A-Za-z0-9][A-Za-z0-9_./-]*", 'write a bucket and its kind, such as "s3://results"')
]
DriverVersion = Annotated[str, matching(r"[1-9][0-9]{1,3}(\.[0-9]{1,3}){0,2}", 'write a version, such as "580.126.09"')]
ToolkitVersion = Annotated[str, matching(r"[1-9][0-9]?\.[0-9]{1,2}", 'write a version of two numbers, such as "12.8"')]
Memory = Annotated[str, matching(r"0|[1-9][0-9]{0,8}[KMGT]?", 'write "240G", or "0" for all of a node\'s memory')]
Positive = Annotated[int, Field(gt=0, le=MOST)]
PositiveFloat = Annotated[float, Field(gt=0, le=MOST)]
