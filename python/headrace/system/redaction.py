"""Secrets in command lines and messages: found by name and by shape, and replaced by `***` before anything is written.

Names: options, variables, query parameters and JSON fields that are called token, password, api_key, … Shapes: the published
formats of access tokens (GitHub, Hugging Face, AWS, Google, Slack, OpenAI, …), JSON Web Tokens, PEM keys, passwords in URLs.

Standard library only: the session writer inside the user's process uses this module too.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

__all__ = ["MASK", "redact_text", "redact_words", "without_url_secrets"]

MASK = "***"

_NAME = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|pw|secret|token|bearer|credentials?|cookie|auth|authorization|auth[-_.]?header|"
    r"jwt|otp|pat|sas|mnemonic|seed[-_.]?phrase|webhook(?:[-_.]?url)?|"
    r"(?:api|access|account|auth|client|encryption|private|secret|service|shared|signing|ssh|storage|subscription|license|wandb|comet"
    r"|neptune|mlflow|hf|aws|azure|gcp|openai|session)[-_.]?(?:access[-_.]?)?(?:key|secret|token|password|auth)(?:[-_.]?id)?)"
)
_NAMED = re.compile(rf"(?:^|[-_.\W]|(?<=[a-z])(?=[A-Z])){_NAME}s?$", re.IGNORECASE)
_NOT_SECRET = re.compile(
    r"(?:^|[-_.\W])(?:max|min|num|n|count|total|batch|pad|eos|bos|unk|mask|special|per|new|image|class|cls|context)[-_.]?tokens?$|"
    r"tokens?[-_.]?(?:per|count|id|ids|dim|size|len|length|dropout|type|mix|merging)|"
    r"^(?:no|use|skip|without|disable|enable|require)[-_.]?(?:auth|sas|otp)$",
    re.IGNORECASE,
)
"""Names that end as secrets do, but describe tokens of a model or are switches: `--max-tokens 512`, `--no-auth`."""

_FLAGS = frozenset({"store_true", "true", "false", "yes", "no", "none", "null", "0", "1", "auto", ""})
_SCHEMES = frozenset({"bearer", "basic", "token", "digest", "negotiate"})
"""First words of an Authorization header, which name how the rest is meant."""

_ASSIGNED = re.compile(
    r"""(?P<name>(?<![\w])[-]{0,2}[A-Za-z][\w.-]*)(?P<quote>\\*["']?\]?)(?P<between>\s*[=:]\s*\[?\s*)"""
    r"""(?P<value>(?P<mark>\\+["']).*?(?P=mark)|"[^"]*"|'[^']*'|[^\s"',;&}\])]+)"""
)
_PAIR = re.compile(r"""(?P<start>(?P<mark>["'])(?P<name>[A-Za-z]\w*[_-][\w.-]*)(?P=mark)\s*,\s*)(?P<value>"[^"]+"|'[^']+')""")
"""Name and value as two arguments in a line of Python: `os.environ.setdefault("HF_TOKEN", "abc")`."""
_OPTION = re.compile(r"""(?<![\w-])(?P<option>--?[A-Za-z][\w.-]*)(?P<space>\s+)(?P<value>"[^"]*"|'[^']*'|[^\s"'-][^\s"']*)""")
_BEARER = re.compile(r"(?i)\b((?:authorization|auth[-_]?header)\W{0,3}[:=]\W{0,3})?(bearer|basic|token)\s+([\w~+/.=-]{4,})")
_USERINFO = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.-]*:/{1,2})(?P<user>[^\s/:@?#\"']*)"
    r"(?P<password>:(?!\d{1,5}/)(?:(?!://)[^\s@?#\"'])*(?=@[\w.\[]))?@"
)
"""User and password of a URL. `http://localhost:9000/bucket/images@2x` has a port and a path; a password may hold slashes."""
_USER_OPTIONS = ("-u", "-U", "--user", "--proxy-user", "--userpwd")
_USER_OPTION = re.compile(rf"(?P<start>(?<![\w-])(?:{'|'.join(_USER_OPTIONS)})[\s=]+[\w.+-]*[A-Za-z][\w.+-]*:)[^\s\"'/]+")
"""`curl -u me:password`; the user and group of `docker run -u 1000:1000` are numbers."""
_QUERY = re.compile(
    r"(?i)(?P<name>[?&;#](?:x-(?:amz|goog|oss|cos|ms|obs)-[\w-]+|awsaccesskeyid|googleaccessid|ossaccesskeyid|signature|sig|se|st|sp|sv|sr|"
    r"skoid|sktid|policy|key-pair-id|expires|key|code|auth|jwt|pat|pass|pwd|pw|sid|"
    r"[\w.-]*(?:session[-_]?id|token|secret|password|passwd|apikey|api_key|api-key|access_key))(?:=|%3D))"
    r"(?P<value>[^\s&;#\"']+)"
)

_SHAPES = tuple(
    re.compile(shape)
    for shape in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)",
        r"\b(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ABIA|ACCA)[A-Z2-7]{16}\b",  # AWS: IAM unique identifiers
        r"\b(?:AQoD|FQoG|FwoG|IQoJ)[A-Za-z0-9/+=]{60,}",  # AWS: session tokens
        r"\bgh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
        r"\bgithub_pat_\w{20,}",
        r"\bgl(?:pat|rt|cbt|dt|ft|imt|oas|ptt|soat|agent)-[\w-]{16,}",  # GitLab
        r"\b(?:hf_(?:oauth_|jwt_)?|api_org_)[A-Za-z0-9]{16,}",  # Hugging Face
        r"\b(?:sk|pk|rk)[-_](?:live|test|proj|ant|or|svcacct)?[-_]?[\w-]{20,}",  # OpenAI, Anthropic, Stripe
        r"\b(?:xox[abeoprs]|xapp)-[\w-]{10,}",  # Slack
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
        r"\bdapi[0-9a-f]{32}\b",  # Databricks
        r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",  # Shopify
        r"\b(?:gsk|r8|whsec|ntn|lin_api|wandb_v1|rpa|pcsk|xai|tgp_v1)_[A-Za-z0-9_]{20,}",  # Groq, Replicate, Notion, W&B, …
        r"\btskey-[a-z]+-[\w-]{16,}",  # Tailscale
        r"https://[\w.-]*office(?:365)?\.com/webhook[\w/@.-]+",
    )
)
_RANDOM = re.compile(r"(?<![\w/+.=-])[A-Za-z0-9/+]{40}={0,2}(?![\w/+.-])")
"""An AWS secret access key is 40 characters of base64; a path of that length has slashes at every few letters, or an ending."""

_LEAST_MIXED = 12
"""Characters. Shorter words with capitals and digits are often names: `ResNet50`."""

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
    for before, word in zip(["", *words], words, strict=False):
        if mask_next and (not word.startswith("-") or _is_mixed(word)):
            clean.append(MASK if word.lower() not in _FLAGS else word)
            mask_next = False
            continue
        mask_next = word.startswith("-") and "=" not in word and _is_secret_name(word.lstrip("-"))
        mask_next = mask_next or (word in ("-u", "--user") and "curl" in words)
        mask_next = mask_next or (word == "-p" and ("sshpass" in words or "login" in words))
        mask_next = mask_next or ("_" in word and word.isidentifier() and _is_secret_name(word))
        is_login = before in ("login", "--key", "-k") and not word.startswith("-") and _is_mixed(word)
        if before in _USER_OPTIONS:
            word = _USER_OPTION.sub(rf"\g<start>{MASK}", f"{before} {word}").removeprefix(f"{before} ")
        clean.append(MASK if is_login else _redact_word(word))
    return clean


def _redact_word(word: str) -> str:
    """A word of a command line; one that is a JSON object or list is masked field by field."""
    start = word.find("=") + 1 if "=" in word.split("{")[0].split("[")[0] else 0
    if word[start : start + 1] in ("{", "[", '"'):
        try:
            value = json.loads(word[start:])
            clean = _redact_json(value)
        except (ValueError, RecursionError):
            return redact_text(word)
        if clean != value:
            return word[:start] + json.dumps(clean, ensure_ascii=False)
        return word
    return redact_text(word)


def _redact_json(value: Any, secret: bool = False) -> Any:
    """The value with every string masked that stands under a secret's name, however deep; JSON in strings too."""
    if isinstance(value, dict):
        return {redact_text(name): _redact_json(item, secret or _is_secret_name(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_redact_json(item, secret) for item in value]
    if isinstance(value, str):
        return MASK if secret and value.lower() not in _FLAGS else _redact_word(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return MASK if secret and is_number and value not in (0, 1) else value


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
        lambda found: (
            f"{found[1] or ''}{found[2]} {MASK}"
            if found[1] or (found[2].lower() == "bearer" and len(found[3]) >= 8)
            else found[0]
        ),
        text,
    )
    text = _USER_OPTION.sub(lambda found: found["start"] + MASK, text)
    text = _ASSIGNED.sub(_without_value, text)
    text = _PAIR.sub(lambda found: f"{found['start']}{found['mark']}{MASK}{found['mark']}" if _names(found) else found[0], text)
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


def _names(found: re.Match[str]) -> bool:
    return _is_secret_name(found["name"].lstrip("-")) and found["value"].strip("\"'").lower() not in _FLAGS


def _without_password(found: re.Match[str]) -> str:
    """Mask the password in `user:password@`, or a token in the user's place. A user name alone (`git@`, `root@`) stays."""
    user = MASK if len(found["user"]) >= 20 or _is_mixed(found["user"]) else found["user"]
    return f"{found['scheme']}{user}{':' + MASK if found['password'] is not None else ''}@"


def _without_value(found: re.Match[str]) -> str:
    value = found["value"].strip("\\\"'")
    name = found["name"].lstrip("-")
    is_secret = _is_secret_name(name) or (re.split(r"[-_.]", name)[-1] == "key" and _is_mixed(value))
    if not is_secret or value.lower() in _FLAGS | _SCHEMES or value == MASK:
        start = found.start("value") - found.start()  # the value may itself hold an assignment: `arguments: --token=abc`
        return found[0][:start] + _ASSIGNED.sub(_without_value, found["value"])
    quote = found["mark"] or (found["value"][0] if found["value"][0] in "\"'" else "")
    return f"{found['name']}{found['quote']}{found['between']}{quote}{MASK}{quote}"


def _without_argument(found: re.Match[str]) -> str:
    """Mask the word after an option with a secret's name, as in a command line that a message shows."""
    is_secret = _is_secret_name(found["option"].lstrip("-")) and found["value"].strip("\"'").lower() not in _FLAGS
    value = MASK if is_secret else _OPTION.sub(_without_argument, found["value"])  # `-c 'python train.py --token abc'`
    return f"{found['option']}{found['space']}{value}"


def _is_mixed(text: str) -> bool:
    """Whether a word has small and capital letters and digits, and nothing else but - and _: words of a language seldom do."""
    plain = text.replace("-", "").replace("_", "")
    kinds = (any(c.islower() for c in plain), any(c.isupper() for c in plain), any(c.isdigit() for c in plain))
    return len(plain) >= _LEAST_MIXED and plain.isalnum() and all(kinds)


def _is_random(text: str) -> bool:
    kinds = (any(c.islower() for c in text), any(c.isupper() for c in text), any(c.isdigit() for c in text))
    if not all(kinds) or text.count("/") > 3:
        return False
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) >= _LEAST_ENTROPY_BITS
