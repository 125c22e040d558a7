"""Secrets in command lines and messages: found by name and by shape, and replaced by `***` before anything is written.

Names: options, variables, query parameters and JSON fields that are called token, password, api_key, … Shapes: the published
formats of access tokens (GitHub, Hugging Face, AWS, Google, Slack, OpenAI, …), JSON Web Tokens, PEM keys, passwords in URLs.

Standard library only: the session writer inside the user's process uses this module too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

__all__ = ["MASK", "redact_text", "redact_words", "without_url_secrets"]

MASK = "***"

_NAME = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|bearer|credentials?|cookie|"
    r"(?:api|access|account|auth|client|encryption|private|secret|service|shared|signing|storage|subscription|license|wandb|comet"
    r"|neptune|mlflow|hf|aws|azure|gcp|openai|session)[-_.]?(?:access[-_.]?)?(?:key|secret|token|password|auth)(?:[-_.]?id)?)"
)
_NAMED = re.compile(rf"(?:^|[-_.\W]|(?<=[a-z])(?=[A-Z])){_NAME}s?$", re.IGNORECASE)
_NOT_SECRET = re.compile(
    r"(?:max|min|num|n|count|total|batch|pad|eos|bos|unk|mask|special|per|new|image|class|cls|context)[-_.]?tokens?$|"
    r"tokens?[-_.]?(?:per|count|id|ids|dim|size|len|length|dropout|type|mix|merging)",
    re.IGNORECASE,
)
"""Names that end in "token" but count or describe tokens of a model: `--max-tokens 512`, `--cls-token`."""

_FLAGS = frozenset({"store_true", "true", "false", "yes", "no", "none", "null", "0", "1", "auto", ""})

_ASSIGNED = re.compile(
    r"""(?P<name>(?<![\w])[-]{0,2}[A-Za-z][\w.-]*)(?P<quote>["']?)(?P<between>\s*[=:]\s*|=)(?P<value>"[^"]*"|'[^']*'|[^\s"',;&}\])]+)"""
)
_OPTION = re.compile(r"""(?<![\w-])(?P<option>--?[A-Za-z][\w.-]*)(?P<space>\s+)(?P<value>"[^"]*"|'[^']*'|[^\s"'-][^\s"']*)""")
_BEARER = re.compile(r"(?i)\b(authorization\s*[:=]\s*)?(bearer|basic|token)\s+([\w~+/.=-]{8,})")
_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*:/{1,2})(?P<user>[^\s/:@?#]*)(?P<password>:[^\s/@?#]*)?@")
_QUERY = re.compile(
    r"(?i)(?P<name>[?&;#](?:x-(?:amz|goog|oss|cos|ms|obs)-[\w-]+|awsaccesskeyid|googleaccessid|ossaccesskeyid|signature|sig|se|st|sp|sv|sr|"
    r"skoid|sktid|policy|key-pair-id|expires|key|code|auth|[\w.-]*(?:token|secret|password|passwd|apikey|api_key|api-key|access_key))=)"
    r"(?P<value>[^\s&;#\"']+)"
)

_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        r"\b(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ABIA|ACCA)[A-Z2-7]{16}\b",  # AWS: IAM unique identifiers
        r"\bgh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
        r"\bgithub_pat_\w{20,}",
        r"\bglpat-[\w-]{16,}",  # GitLab
        r"\bhf_[A-Za-z0-9]{16,}",  # Hugging Face
        r"\b(?:sk|pk|rk)[-_](?:live|test|proj|ant|or|svcacct)?[-_]?[\w-]{20,}",  # OpenAI, Anthropic, Stripe
        r"\bxox[abeoprs]-[\w-]{10,}",  # Slack
        r"https://hooks\.slack\.com/services/[\w/]+",
        r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/[\w/-]+",
        r"\bAIza[\w-]{30,}",  # Google
        r"\bya29\.[\w-]{20,}",
        r"\bGOCSPX-[\w-]{20,}",
        r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON Web Token (RFC 7519)
        r"\bnpm_[A-Za-z0-9]{30,}",
        r"\bpypi-[\w-]{30,}",
        r"\bdckr_pat_[\w-]{20,}",
        r"\bnvapi-[\w-]{20,}",  # NVIDIA
        r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}",
        r"\bSG\.[\w-]{16,}\.[\w-]{16,}",  # SendGrid
        r"\bdop_v1_[0-9a-f]{32,}",
    )
)
_RANDOM = re.compile(r"(?<![\w/+.=-])[A-Za-z0-9/+]{40}={0,2}(?![\w/+.-])")
"""An AWS secret access key is 40 characters of base64; a path of that length has slashes at every few letters, or an ending."""

_LEAST_ENTROPY_BITS = 4.3
"""Per character. Forty random base64 characters have about 4.9; words and file names stay below 4.2."""


def redact_words(words: Sequence[str]) -> list[str]:
    """Return a command line, one word an item, without its secrets: `["--token", "abc"]` becomes `["--token", "***"]`.

    A word after an option with a secret's name is masked whole, unless it is an option itself.

        >>> redact_words(["train.py", "--api-key", "k-123", "--epochs", "3"])
        ['train.py', '--api-key', '***', '--epochs', '3']
    """
    clean: list[str] = []
    mask_next = False
    for word in words:
        if mask_next and not word.startswith("-"):
            clean.append(MASK if word.lower() not in _FLAGS else word)
            mask_next = False
            continue
        mask_next = word.startswith("-") and "=" not in word and _is_secret_name(word.lstrip("-"))
        mask_next = mask_next or (word in ("-u", "--user") and "curl" in words)
        clean.append(redact_text(word))
    return clean


def redact_text(text: str) -> str:
    """Return a text without its secrets: values with a secret's name, tokens of known shape, passwords in URLs.

    Command lines inside the text count too: `--token abc` becomes `--token ***`.

    >>> redact_text("s3 from https://me:pass@host/x?sig=abc with WANDB_API_KEY=123456")
    's3 from https://me:***@host/x?sig=*** with WANDB_API_KEY=***'
    """
    for shape in _SHAPES:
        text = shape.sub(MASK, text)
    text = _USERINFO.sub(_without_password, text)
    text = _QUERY.sub(lambda found: found["name"] + MASK, text)
    text = _BEARER.sub(
        lambda found: f"{found[1] or ''}{found[2]} {MASK}" if found[1] or found[2].lower() == "bearer" else found[0], text
    )
    text = _ASSIGNED.sub(_without_value, text)
    text = _OPTION.sub(_without_argument, text)
    return _RANDOM.sub(lambda found: MASK if _is_random(found[0]) else found[0], text)


def without_url_secrets(text: str) -> str:
    """Return a text without the secrets of the URLs in it, quickly where there is none.

    >>> without_url_secrets("https://me:pass@host/data holds 3 images")
    'https://me:***@host/data holds 3 images'
    """
    return redact_text(text) if ":/" in text else text


def _is_secret_name(name: str) -> bool:
    return bool(_NAMED.search(name)) and not _NOT_SECRET.search(name)


def _without_password(found: re.Match[str]) -> str:
    """Mask the password in `user:password@`, or a token alone before the @. A short user name alone (`git@`, `root@`) stays."""
    if found["password"] is not None:
        return f"{found['scheme']}{found['user']}:{MASK}@"
    return found[0] if len(found["user"]) < 20 else f"{found['scheme']}{MASK}@"


def _without_value(found: re.Match[str]) -> str:
    value = found["value"].strip("\"'")
    if not _is_secret_name(found["name"].lstrip("-")) or value.lower() in _FLAGS or value == MASK:
        start = found.start("value") - found.start()  # the value may itself hold an assignment: `arguments: --token=abc`
        return found[0][:start] + _ASSIGNED.sub(_without_value, found["value"])
    quote = found["value"][0] if found["value"][0] in "\"'" else ""
    return f"{found['name']}{found['quote']}{found['between']}{quote}{MASK}{quote}"


def _without_argument(found: re.Match[str]) -> str:
    """Mask the word after an option with a secret's name, as in a command line that a message shows."""
    is_secret = _is_secret_name(found["option"].lstrip("-")) and found["value"].strip("\"'").lower() not in _FLAGS
    value = MASK if is_secret else _OPTION.sub(_without_argument, found["value"])  # `-c 'python train.py --token abc'`
    return f"{found['option']}{found['space']}{value}"


def _is_random(text: str) -> bool:
    kinds = (any(c.islower() for c in text), any(c.isupper() for c in text), any(c.isdigit() for c in text))
    if not all(kinds) or text.count("/") > 3:
        return False
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) >= _LEAST_ENTROPY_BITS
