"""Secrets in command lines and messages: found by name and by shape, and replaced by `***` before anything is written.

Names: options, variables, query parameters and JSON fields that are called token, password, api_key, … Shapes: the published
formats of access tokens (GitHub, Hugging Face, AWS, Google, Slack, OpenAI, …), JSON Web Tokens, PEM keys, passwords in URLs.

Standard library only: the session writer inside the user's process uses this module too.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.errors import HeadraceError
from headrace.system.text.printable import printable_lines

__all__ = ["MASK", "redact_text", "redact_words", "without_url_secrets"]

MASK = "***"

_LONG = (
    r"password|passwd|passphrase|passcode|passwort|kennwort|wachtwoord|contrase[nñ]a|senha|mot[-_.]?de[-_.]?passe|"
    r"secret|token|bearer|credentials?|cookie|auth(?:orization|[-_.]?header)?|jwt|mnemonic|"
    r"seed[-_.]?phrase|webhook(?:[-_.]?url)?|(?:ssh|db|pg|mysql|user|smtp|ftp|proxy|admin)pass|"
    r"(?:api|access|account|auth|client|encryption|private|secret|service|shared|signing|ssh|storage|subscription|license|wandb|comet"
    r"|neptune|mlflow|clearml|kaggle|minio|roboflow|hf|huggingface|aws|azure|gcp|openai|session)[-_.]?(?:access[-_.]?)?"
    r"(?:key|secret|token|password|auth)(?:[-_.]?id)?|"
    r"(?:wandb|comet|neptune|mlflow|clearml|kaggle|hf|huggingface)[-_.]?login"
)
"""Ends of names that mean a secret wherever they stand: `PGPASSWORD`, `authtoken`."""
_SHORT = r"pass|pwd|pswd|psswd|passw|pword|pw|otp|pat|pin|sas|cred|signature"
"""Ends of names that mean a secret as a word of its own: `--db-pass`, but neither `--bypass` nor `--compat`."""
_NAMED = re.compile(rf"(?:(?:^|[-_.\W]|(?-i:(?<=[a-z\d])(?=[A-Z])))(?:{_SHORT})|{_LONG})s?$", re.IGNORECASE)
_NOT_SECRET = re.compile(
    r"(?:^|[-_.\W])(?:max|min|num|n|count|total|batch|pad|eos|bos|unk|sep|mask|special|per|new|img|image|class|cls|dist|context|reg"
    r"|register|prefix|suffix|stop|start|end|first|last|prompt|query|text|audio|video|visual|vision|placeholder|initializer"
    r"|modifier|decoder|encoder|added|bad|suppress|patch|latent|memory|word)[-_.]?tokens?$|"
    r"tokens?[-_.]?(?:per|count|id|ids|dim|size|len|length|dropout|type|mix|merging)|"
    r"^(?:no|use|skip|without|disable|enable|require)[-_.]?(?:auth|sas|otp|pin)$|^(?:no|skip|without|disable)[-_.][\w.-]+$",
    re.IGNORECASE,
)
"""Names that end as secrets do, but describe tokens of a model or are switches: `--max-tokens 512`, `--no-auth`."""
_LONGEST_NAME = 200
"""Look at no more than this many characters at the end of a name."""

_COUNTED = re.compile(
    r"(?:^|[-_.\W]|(?-i:(?<=[a-z\d])(?=[A-Z])))(?:(?P<plural>tokens)|token|pats?|sas|pass|pins?)$", re.IGNORECASE
)
_NUMBER = re.compile(r"[+-]?\d+(?:[._,]\d+)*(?:e[+-]?\d+)?[kmbt]?", re.IGNORECASE)
_PLAIN_WORDS = re.compile(r"default|[a-z]+(?:_[a-z]+)+")
_LONGEST_COUNT = {"token": 5, "pat": 5, "pats": 5, "sas": 5, "pass": 3, "pin": 3, "pins": 3}
"""Digits of a number that counts: `--pat 5` is a patience, `--smoothing-pass 3` a number of passes, but `--pin 1234` a PIN."""

_FLAGS = frozenset({"store_true", "true", "false", "yes", "no", "none", "null", "0", "1", "auto", ""})
_SCHEMES = frozenset({"bearer", "basic", "token", "digest", "negotiate"})
"""First words of an Authorization header, which name how the rest is meant."""

# Names and other long runs are matched possessively (`++`), and start where no run goes on: a very long word takes linear time.
_ASSIGNED = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]++)\\*+["']?\]?\s*+[=:]\s*+\[?\s*+""")
_VALUE = re.compile(r"""(?P<mark>\\+["']).{0,4096}?(?P=mark)|"[^"]*"|'[^']*'|[^\s"',;&}\])]+""")
_KEY_VALUE = re.compile(r"""\\*["']?(?P<word>[\w-]+)""")
_PAIR = re.compile(r"""(?P<start>(?P<mark>["'])(?P<name>[A-Za-z][\w.-]*+)(?P=mark)\s*+,\s*+)(?P<value>"[^"]+"|'[^']+')""")
"""Name and value as two arguments in a line of Python: `os.environ.setdefault("HF_TOKEN", "abc")`."""
_OPTION = re.compile(
    r"""(?<![\w.-])(?P<option>--?[A-Za-z][\w.-]*+)(?P<space>\s++)"""
    r"""(?P<value>"[^"]*"|'[^']*'|(?:\\.|[^\s"'\\-])(?:\\.|[^\s"'\\])*+)"""
)
_PASSWORD_IN_WORDS = re.compile(r"(?i)(?<![\w-])(?P<start>(?:password|passwd|passphrase)\s++)(?P<value>[^\s\"',;:=()]++)")
_ATTACHED = re.compile(
    r"(?P<start>(?:^|[|;&(:\"'`]|\bsudo\s)\s*+(?:[\w.-]*+/)*+"
    r"(?:mysql\w*+|mariadb[\w-]*+|sshpass|7z[ar]?|(?:docker|podman)\s+login)\s[^|;&\n]{0,400}?"
    r"(?<=\s)-p)(?P<value>[^\s\"']+)"
)
"""`mysql -psecret`: programs whose option -p takes a password without a space."""
_ATTACHING = re.compile(r"(?:.*/)?(?:mysql\w*|mariadb[\w-]*|sshpass|7z[ar]?)")
_BEARER = re.compile(
    r"(?i)(?:\b|(?<=-H))((?:authorization|auth[-_]?header)\W{0,3}[:=]\W{0,3})?(bearer|basic|token)\s+([\w~+/.=-]{4,})"
)
_USERINFO = re.compile(
    r"(?<![\w+.-])(?P<scheme>[\w+.-]++:/{1,2}+)(?P<user>[^\s/:@?#\"']*+)"
    r"(?:@[^\s/:@?#\"']++(?=:[^\s/@]*+@))?"
    r"(?P<password>:(?!\d{1,5}/)(?:(?!://)[^\s@?#\"']){0,2048}+(?:@[^\s@/?#\"']{1,256}){0,8}(?=@[\w.\[]))?@"
)
"""User and password of a URL. `http://localhost:9000/bucket/images@2x` has a port and a path; a password may hold / and @."""
_USER_OPTIONS = ("-u", "-U", "--user", "--proxy-user", "--userpwd", "--login")
_USER_OPTION = re.compile(rf"(?P<start>(?<![\w-])(?:{'|'.join(_USER_OPTIONS)})[\s=]++(?![\d_.+-]++:)[\w.+-]++:)[^\s\"'/]+")
"""`curl -u me:password`; the user and group of `docker run -u 1000:1000` are numbers."""
_BARE_USERINFO = re.compile(
    r"(?P<start>(?:(?<![^\s=\"'])|(?<=[\s=\"']//)|(?<=^//))(?!mailto:)[A-Za-z_][\w.+-]*+:)"
    r"(?P<password>[^\s:/@\"']++(?:@[^\s:/@\"']{1,128}){0,4})"
    r"@(?!sha\d+:)(?=[\w.-]++(?::\d|/))"
)
"""`me:password@host:3128`, an address without a scheme, with a port or a path; an image's digest (`a:1@sha256:…`) is none."""
_COOKIE = re.compile(r"(?i)(?P<start>(?<![\w-])(?:-H)?(?:set-)?cookie:\s*+)(?P<value>[^\"'\n]++)")
_NAME_AND_VALUE = re.compile(
    r"""(?i)(?P<start>(?<![\w\\-])\\*+["']?(?:name|key|variable)\\*+["']?\s*+[=:]\s*+\\*["']?(?P<name>[\w.-]++)\\*["']?\s*+,\s*+"""
    r"""\\*["']?value\\*["']?\s*+[=:]\s*+\\*["']?)(?P<value>[^\s\\"',;}]++)"""
)
"""A variable as Kubernetes, ECS and the AWS command line write it: `{"name": "HF_TOKEN", "value": "abc"}`, `Name=…,Value=…`."""
_NAME_FIELDS, _VALUE_FIELDS = frozenset({"name", "key", "variable"}), frozenset({"value", "string_value", "default"})
_QUERY = re.compile(
    r"(?i)(?P<name>[?&;#](?:x-(?:amz|goog|oss|cos|ms|obs)-[\w-]+|awsaccesskeyid|googleaccessid|ossaccesskeyid|signature|sig|se|st|sp|sv|sr|"
    r"skoid|sktid|policy|key-pair-id|expires|key|code|auth|jwt|pat|pass|pwd|pw|sid|"
    r"[\w.-]*(?:session[-_]?id|token|secret|password|passwd|apikey|api_key|api-key|access_key))(?:=|%3D))"
    r"(?P<value>[^\s&;#\"']+)"
)

_SHAPES = tuple(
    (tuple(literals.split()), re.compile(shape))
    for literals, shape in (
        ("KEY-----", r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"),
        (
            "AKIA ASIA AROA AIDA AGPA ANPA ABIA ACCA",
            r"\b(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ABIA|ACCA)[A-Z2-7]{16}\b",
        ),  # AWS: IAM unique identifiers
        ("AQoD FQoG FwoG IQoJ", r"\b(?:AQoD|FQoG|FwoG|IQoJ)[A-Za-z0-9/+=]{60,}"),  # AWS: session tokens
        ("ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{20,}"),  # GitHub
        ("github_pat_", r"\bgithub_pat_\w{20,}"),
        (
            "glpat- glrt- glcbt- gldt- glft- glimt- gloas- glptt- glsoat- glagent-",
            r"\bgl(?:pat|rt|cbt|dt|ft|imt|oas|ptt|soat|agent)-[\w-]{16,}",
        ),  # GitLab
        ("hf_ api_org_", r"\b(?:hf_(?:oauth_|jwt_)?|api_org_)[A-Za-z0-9]{16,}"),  # Hugging Face
        (
            "sk- sk_ pk- pk_ rk- rk_",
            r"\b(?:sk|pk|rk)[-_](?:live|test|proj|ant|or|svcacct)?[-_]?[\w-]{20,}",
        ),  # OpenAI, Anthropic, Stripe
        ("xox xapp-", r"\b(?:xox[abeoprs]|xapp)-[\w-]{10,}"),  # Slack
        ("https://hooks.slack.com/", r"https://hooks\.slack\.com/services/[\w/]+"),
        (":AA", r"(?<!\d)\d{8,12}:AA[\w-]{25,}"),  # Telegram
        ("/api/webhooks/", r"https://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/[\w/-]+"),
        ("AIza", r"\bAIza[\w-]{30,}"),  # Google
        ("ya29.", r"\bya29\.[\w-]{20,}"),
        ("GOCSPX-", r"\bGOCSPX-[\w-]{20,}"),
        ("eyJ", r"\beyJ[\w-]{8,1024}+\.[\w-]{8,}(?:\.[\w-]*)?"),  # JSON Web Token (RFC 7519)
        ("npm_", r"\bnpm_[A-Za-z0-9]{30,}"),
        ("pypi-", r"\bpypi-[\w-]{30,}"),
        ("dckr_pat_", r"\bdckr_pat_[\w-]{20,}"),
        ("nvapi-", r"\bnvapi-[\w-]{20,}"),  # NVIDIA
        (".atlasv1.", r"\b[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}"),
        ("SG.", r"\bSG\.[\w-]{16,}\.[\w-]{16,}"),  # SendGrid
        ("dop_v1_", r"\bdop_v1_[0-9a-f]{32,}"),
        ("dapi", r"\bdapi[0-9a-f]{32}\b"),  # Databricks
        ("shpat_ shpca_ shppa_ shpss_", r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),  # Shopify
        (
            "gsk_ r8_ whsec_ ntn_ lin_api_ wandb_v1_ rpa_ pcsk_ xai_ tgp_v1_",
            r"\b(?:gsk|r8|whsec|ntn|lin_api|wandb_v1|rpa|pcsk|xai|tgp_v1)_[A-Za-z0-9_]{20,}",
        ),  # Groq, Replicate, Notion, W&B, …
        ("tskey-", r"\btskey-[a-z]+-[\w-]{16,}"),  # Tailscale
        (".com/webhook", r"https://[\w.-]*office(?:365)?\.com/webhook[\w/@.-]+"),
        ("hvs. hvb. hvr.", r"\bhv[sbr]\.[\w-]{20,}"),  # HashiCorp Vault
        ("AGE-SECRET-KEY-1", r"\bAGE-SECRET-KEY-1[A-Z0-9]{40,}"),  # age
        ("key-", r"\bkey-[0-9a-f]{32}\b"),  # Mailgun
        ("-", r"\b[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}\b"),
        ("SK", r"\bSK[0-9a-f]{32}\b"),  # Twilio
        (".", r"\b[MNO][\w-]{22,27}\.[\w-]{6}\.[\w-]{27,}"),  # Discord: the token of a bot
    )
)
"""Published formats of tokens. Each is searched for only in a text that holds one of the words before it, as any match does:
a search for a word takes a hundredth of that for a shape.
"""
_ENCODED = re.compile(r"(?<![\w/+.=-])e[yw][A-Za-z0-9+/_-]{60,}+={0,2}(?![\w/+.-])")
_ENCODED_SECRET = re.compile(rb"private_key|service_account|password|secret|token", re.IGNORECASE)
"""A JSON object in base64 (`ey…` and `ew…` are `{` and what follows it): a service account, but not a list of hosts."""
_COOKIES_OF_CURL = re.compile(
    r"(?P<start>(?<![\w.-])curl\s[^|;&\n]{0,400}?(?<=\s)-b\s*+)(?P<value>\"[^\"]*\"|'[^']*'|[^\s\"']+)"
)
_WANDB_KEY = re.compile(r"(?i)(?P<start>wandb[\w.-]{0,40}+[\s=:\"']{1,4}+)[0-9a-f]{40}(?![\w/+.-])")
"""W&B's keys are 40 hex digits, as commits are: a secret only after a name with `wandb`."""
_RANDOM = re.compile(r"(?<![\w/+.=-])[A-Za-z0-9/+]{40}={0,2}(?![\w/+.-])")
"""An AWS secret access key is 40 characters of base64; a path of that length has slashes at every few letters, or an ending."""

_BARE_NAMES = frozenset({"password", "passwd", "passphrase", "pwd", "authtoken", "add-authtoken"})
"""Words that are followed by a secret though they are no options: `config set password abc`."""
_MANY_WORDS = re.compile(r"(?i)(?:pass(?:word|wd|phrase)|auth|credentials?)$")
"""Names whose value may be several words."""

_PASSWORD_OPTIONS = {
    "redis-cli": "-a", "mongosh": "-p", "mongodump": "-p", "mongorestore": "-p", "sqlcmd": "-P", "sshpass": "-p",
}  # fmt: skip
"""Programs whose short option takes a password as the next word."""
_KEYED = re.compile(r"[A-Za-z\d_-]{20,}")
"""What follows `login`: W&B's keys are 40 hex digits, as commits are, and a secret only there."""
_ASSIGNMENT = re.compile(r"(?P<name>--?[A-Za-z_][\w.-]*+|[A-Za-z_][\w.-]*+(?!=\S*\s))=(?P<value>[\s\S]+)")
"""A word that is one assignment. Without dashes a space ends the value: `PGPASSWORD=abc python train.py` in `bash -c`."""

_LEAST_MIXED = 12
"""Least length in characters of a word that may be a random token. Shorter ones with digits are often names: `ResNet50`."""

_LEAST_ENTROPY_BITS = 4.3
"""Least Shannon entropy per character of a random token. 40 random base64 characters have about 4.9; file names at most 4.2."""


def redact_words(words: Sequence[str]) -> list[str]:
    """Return a command line, one word an item, without its secrets: `["--token", "abc"]` becomes `["--token", "***"]`.

    A word after an option with a secret's name is masked whole, unless it is an option itself. After a password's name, so are
    the plain words that follow: a password with spaces may have lost its quotes.

        >>> redact_words(["train.py", "--api-key", "k-123", "--epochs", "3"])
        ['train.py', '--api-key', '***', '--epochs', '3']
    """
    clean: list[str] = []
    name, values = "", 0  # the option whose values come next, and how many were masked
    attached, options = _takes_attached_passwords(words), _password_options(words)
    for before, word in zip(["", *words], words, strict=False):
        if name and (not word.startswith("-") or (not values and _is_mixed(word))) and not (values and _ends_password(word)):
            is_secret = _is_secret(name, word) if name != MASK else word.lower() not in _FLAGS
            clean.append(MASK if is_secret else _redact_word(word))
            values += is_secret
            name = name if is_secret and _MANY_WORDS.search(name) else ""
            continue
        name, values = _awaited(word, options), 0
        if attached and word.startswith("-p") and len(word) > 2:
            clean.append(f"-p{MASK}")
            attached = False
            continue
        is_login = before in ("login", "--relogin", "--key", "-k", "-t") and not word.startswith("-") and _is_mixed(word)
        is_login = is_login or (before in ("login", "--relogin") and _KEYED.fullmatch(word) is not None)
        is_login = is_login or (
            _KEYED.fullmatch(word) is not None and _WANDB_KEY.fullmatch(f"{before.lstrip('-')} {word}") is not None
        )
        if before in _USER_OPTIONS:
            word = _USER_OPTION.sub(rf"\g<start>{MASK}", f"{before} {word}").removeprefix(f"{before} ")
        clean.append(MASK if is_login else _redact_word(word))
    return clean


def _takes_attached_passwords(words: Sequence[str]) -> bool:
    """Return whether a program of the command line takes `-pPASSWORD`. An option's value is no program: `--storage mysql`."""
    started = (word for before, word in zip(["", *words], words, strict=False) if not before.startswith("-"))
    return any(_ATTACHING.fullmatch(word) for word in started) or ("login" in words and bool({"docker", "podman"} & {*words}))


def _password_options(words: Sequence[str]) -> frozenset[str]:
    """Return the options without a secret's name that a program in the command line gives a password."""
    names = {word.rpartition("/")[2] for word in words}
    found = {option for program, option in _PASSWORD_OPTIONS.items() if program in names}
    return frozenset(found | ({"-u", "--user", "-b"} if "curl" in names else set()) | ({"-p"} if "login" in names else set()))


def _awaited(word: str, options: frozenset[str]) -> str:
    """Return the name of the secret that the next word is, after this one, `MASK` if it has no name, or "" for none."""
    if word.startswith("-"):
        if "=" not in word and _is_secret_name(word.lstrip("-")):
            return word.lstrip("-")
        return MASK if word in options else ""
    is_name = ("_" in word and word.isidentifier()) or word.lower() in _BARE_NAMES
    return word if is_name and _is_secret_name(word) else ""


def _ends_password(word: str) -> bool:
    """Return whether a further word after a password is none of its words: a path, a file, an assignment or a number."""
    return "/" in word or "=" in word or bool(_NUMBER.fullmatch(word)) or bool(re.search(r"\.[a-z]{1,5}\d?$", word))


def _redact_word(word: str) -> str:
    """Return a word of a command line without secrets; a JSON object or list is masked field by field."""
    whole = _ASSIGNMENT.fullmatch(word)
    if whole is not None and whole["value"][0] not in "{[" and _is_secret(whole["name"].lstrip("-"), whole["value"]):
        return f"{whole['name']}={MASK}"  # a password may hold commas, semicolons, brackets and quotes
    start = word.find("=") + 1 if "=" in word.split("{")[0].split("[")[0] else 0
    if word[start : start + 1] in ("{", "[", '"'):
        try:
            value = json.loads(word[start:])
            clean = _redact_json(value)
        except (ValueError, RecursionError):
            return redact_text(word)
        if clean != value:
            return word[:start] + json.dumps(clean, ensure_ascii=False)
        if not isinstance(value, str):
            return word
    if whole is not None and _is_secret(whole["name"].lstrip("-"), whole["value"]):
        return f"{whole['name']}={MASK}"
    return redact_text(word)


def _redact_json(value: Any, secret: str = "") -> Any:
    """Return the value with every string masked that stands under a secret's name, however deep; JSON in strings too."""
    if isinstance(value, dict):
        named = next((item for name, item in value.items() if name.lower() in _NAME_FIELDS and isinstance(item, str)), "")
        if _is_secret_name(named):
            value = {name: _redact_json(item, named) if name.lower() in _VALUE_FIELDS else item for name, item in value.items()}
        return {redact_text(name): _redact_json(item, secret or _secret_name(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_redact_json(item, secret) for item in value]
    if isinstance(value, str):
        return MASK if secret and _is_secret(secret, value) else _redact_word(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return MASK if secret and is_number and _is_secret(secret, str(value)) else value


def redact_text(text: str) -> str:
    """Return a text without its secrets: values with a secret's name, tokens of known shape, passwords in URLs.

    Command lines inside the text count too: `--token abc` becomes `--token ***`.

    >>> redact_text("s3 from https://me:pass@host/x?sig=abc with WANDB_API_KEY=123456")
    's3 from https://me:***@host/x?sig=*** with WANDB_API_KEY=***'
    """
    small = _small(text)
    for literals, shape in _SHAPES:
        if _holds(text, *literals):
            text = shape.sub(MASK, text)
    if _holds(text, "ey", "ew"):
        text = _ENCODED.sub(lambda found: MASK if _is_encoded_secret(found[0]) else found[0], text)
    if "curl" in text:
        text = _COOKIES_OF_CURL.sub(lambda found: found["start"] + MASK, text)
    if "wandb" in small:
        text = _WANDB_KEY.sub(lambda found: found["start"] + MASK, text)
    if "@" in text:
        text = _USERINFO.sub(_without_password, text)
        text = _BARE_USERINFO.sub(lambda found: f"{found['start']}{MASK}@", text)
    if "cookie:" in small:
        text = _COOKIE.sub(lambda found: found["start"] + MASK, text)
    if "value" in small:
        text = _NAME_AND_VALUE.sub(lambda found: found["start"] + MASK if _is_secret_pair(found) else found[0], text)
    if _holds(small, "=", "%3d") and _holds(text, "?", "&", ";", "#"):
        text = _QUERY.sub(lambda found: found["name"] + MASK, text)
    if _holds(small, "bearer", "basic", "token"):
        text = _BEARER.sub(_without_bearer, text)
    if "-" in text:
        text = _without_options(text)
    text = _without_assigned(text)
    if "," in text:
        text = _PAIR.sub(
            lambda found: f"{found['start']}{found['mark']}{MASK}{found['mark']}" if _names(found) else found[0], text
        )
    if "-" in text:
        text = _OPTION.sub(_without_argument, text)
    if "pass" in small:
        text = _PASSWORD_IN_WORDS.sub(
            lambda found: found["start"] + MASK if _has_letter_and_digit(found["value"]) else found[0], text
        )
    return _RANDOM.sub(lambda found: MASK if _is_random(found[0]) else found[0], text)


def _small(text: str) -> str:
    """The text for `in`, where a pattern ignores case: patterns take the letters İ, ı, ſ and K for i, s and k, too."""
    return text.lower() if text.isascii() else text.casefold().replace("\u0307", "").replace("\u0131", "i")


def _holds(text: str, *words: str) -> bool:
    return any(word in text for word in words)


def without_url_secrets(text: str) -> str:
    """Return a text with the secrets in its URLs replaced by `***`; quick for a text without URLs.

    >>> without_url_secrets("https://me:pass@host/data holds 3 images")
    'https://me:***@host/data holds 3 images'
    """
    return redact_text(text) if ":/" in text else text


def _is_secret_name(name: str) -> bool:
    return _ends_as_secret(name[-_LONGEST_NAME:])


@functools.lru_cache(4096)  # a log or a document repeats its names
def _ends_as_secret(end: str) -> bool:
    return bool(_NAMED.search(end)) and not _NOT_SECRET.search(end)


def _secret_name(name: str) -> str:
    return name if _is_secret_name(name) else ""


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value is a secret, given its name. Numbers that count, patterns, switches and masked values are none."""
    value = value.strip("\\\"'")
    if not _is_secret_name(name) or value == MASK or value.lower() in _FLAGS:
        return False
    if name[-9:].lower() == "signature" and _PLAIN_WORDS.fullmatch(value):
        return False  # a function of a saved model: `--signature serving_default`
    counted = _COUNTED.search(name[-_LONGEST_NAME:])
    if counted is None:
        return True
    if _NUMBER.fullmatch(value):
        return not counted["plural"] and len(value) > _LONGEST_COUNT[re.split(r"[-_.\W]", counted[0].lower())[-1]]
    return not (set("*{%") & set(value) and counted[0].lower().endswith("pat"))  # a pattern of file names


def _is_secret_pair(found: re.Match[str]) -> bool:
    return _is_secret(found["name"], found["value"])


def _names(found: re.Match[str]) -> bool:
    return ("_" in found["name"] or "-" in found["name"]) and _is_secret(found["name"], found["value"])


def _without_password(found: re.Match[str]) -> str:
    """Mask the password in `user:password@`, or a token in the user's place. A user name alone (`git@`, `root@`) stays."""
    user = MASK if len(found["user"]) >= 20 or _is_mixed(found["user"]) else found["user"]
    return f"{found['scheme']}{user}{':' + MASK if found['password'] is not None else ''}@"


def _without_bearer(found: re.Match[str]) -> str:
    is_secret = found[1] or (found[2].lower() == "bearer" and len(found[3]) >= 8)
    return f"{found[1] or ''}{found[2]} {MASK}" if is_secret else found[0]


def _without_options(text: str) -> str:
    """Mask the passwords of options of known programs: `curl -u me:password`, `mysql -ppassword`."""
    if _holds(text, "-u", "-U", "--login"):
        text = _USER_OPTION.sub(lambda found: found["start"] + MASK, text)
    if "-p" in text and _holds(text, "mysql", "mariadb", "sshpass", "7z", "docker", "podman"):
        text = _ATTACHED.sub(lambda found: found["start"] + MASK, text)
    return text


def _without_assigned(text: str) -> str:
    """Mask the values that are assigned to secrets' names. A value may itself hold an assignment: `arguments: --token=abc`."""
    parts, done, position = [], 0, 0
    while (found := _ASSIGNED.search(text, position)) is not None:
        position = found.end()
        name = found["name"].lstrip("-")
        word = _KEY_VALUE.match(text, position) if name.endswith(("-key", "_key", ".key")) or name == "key" else None
        is_key = word is not None and _is_mixed(word["word"])
        value = _VALUE.match(text, position) if is_key or _is_secret_name(name) else None
        if value is None or not (is_key or _is_secret(name, value[0])) or value[0].lower() in _SCHEMES:
            continue
        quote = value["mark"] or (value[0][0] if value[0][0] in "\"'" else "")
        parts += [text[done:position], quote, MASK, quote]
        done = position = value.end()
    return "".join([*parts, text[done:]])


def _without_argument(found: re.Match[str]) -> str:
    """Mask the word after an option with a secret's name, as in a command line that a message shows."""
    is_secret = _is_secret(found["option"].lstrip("-"), found["value"])
    value = MASK if is_secret else _OPTION.sub(_without_argument, found["value"])  # `-c 'python train.py --token abc'`
    return f"{found['option']}{found['space']}{value}"


def _has_letter_and_digit(text: str) -> bool:
    return any(c.isalpha() for c in text) and any(c.isdigit() for c in text)


def _is_mixed(text: str) -> bool:
    """Return whether a word has small letters, capitals and digits, besides them only - and _: few words of a language do."""
    plain = text.replace("-", "").replace("_", "")
    kinds = (any(c.islower() for c in plain), any(c.isupper() for c in plain), any(c.isdigit() for c in plain))
    return len(plain) >= _LEAST_MIXED and plain.isalnum() and all(kinds)


def _is_random(text: str) -> bool:
    kinds = (any(c.islower() for c in text), any(c.isupper() for c in text), any(c.isdigit() for c in text))
    if not all(kinds) or text.count("/") > 3:
        return False
    counts = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts.values()) >= _LEAST_ENTROPY_BITS


def _is_encoded_secret(text: str) -> bool:
    """Return whether a JSON object in base64 has a field with a secret's name."""
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    return _ENCODED_SECRET.search(base64.b64decode(plain[: len(plain) // 4 * 4])) is not None


def _public(text: str) -> str:
    """Return the message of an error as Python may print it: without secrets, and with escapes for what acts on a terminal."""
    return printable_lines(without_url_secrets(text))


HeadraceError.mask = staticmethod(_public)
