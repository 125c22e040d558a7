"""How each kind of store is reached: what the environment says of endpoints and credentials, and what to say without.

The variables are those of each cloud's own tools, read by obstore; `docs/packing.md` lists them.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from headrace.errors import SourceError

__all__ = ["access_options", "credentials_hint", "is_unknown_user"]

# Variables that name an endpoint; of a plain http:// one it is said that this is meant.
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_HINTS = {
    "s3": "log in (aws configure, aws sso login) or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; to see who you are: "
    "aws sts get-caller-identity; for a public bucket AWS_SKIP_SIGNATURE=true",
    "gs": "log in (gcloud auth application-default login) or set GOOGLE_APPLICATION_CREDENTIALS to the file of a service "
    "account's key; for a public bucket GOOGLE_SKIP_SIGNATURE=true",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN (or after az login "
    "AZURE_USE_AZURE_CLI=true); for a public container AZURE_SKIP_SIGNATURE=true",
}
# Azurite has an account of its own.
_AZURE_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR")
# Parts of the addresses at which machines in a cloud ask who they are: AWS, Google, Azure.
_WHO_AM_I = ("/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity/")


def access_options(url: str) -> dict[str, Any]:
    """Arguments for obstore's `from_url`, but for how patient it is. Raises SourceError where something is missing."""
    scheme = url.partition("://")[0].lower()
    options: dict[str, Any] = {"client_options": {"allow_http": _plain(scheme)}}
    if scheme == "s3" and not os.environ.get("AWS_ACCESS_KEY_ID"):
        options |= _boto3_credentials()
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")  # as Google's own libraries have it
    if scheme == "gs" and emulator:
        address = emulator if "://" in emulator else f"http://{emulator}"
        nobody = {
            "gcs_base_url": address.rstrip("/"),
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        options["service_account_key"] = json.dumps(nobody)
    if scheme == "az" and not any(os.environ.get(name) for name in _AZURE_ACCOUNTS):
        raise SourceError(f"{url} cannot be opened: the storage account is not known", hint=_HINTS["az"])
    return options


def credentials_hint(url: str) -> str | None:
    """What to do where a store does not know who asks; None for those that have no credentials."""
    return _HINTS.get(url.partition("://")[0].lower())


def is_unknown_user(error: BaseException) -> bool:
    """Whether a request failed because there are no credentials, and the machine has no role either that would give some."""
    words = str(error)
    return any(part in words for part in _WHO_AM_I)


def _plain(scheme: str) -> bool:
    if scheme in ("http", "https"):
        return scheme == "http"
    if scheme == "az" and os.environ.get("AZURE_STORAGE_USE_EMULATOR"):
        return True
    named = [os.environ.get(name, "") for name in _ENDPOINTS.get(scheme, ())]
    return any(name and not name.startswith("https://") for name in named)


def _boto3_credentials() -> dict[str, Any]:
    """boto3's credential chain where boto3 is installed and finds any; else obstore's own (environment, instance role)."""
    if os.environ.get("AWS_SKIP_SIGNATURE"):
        return {}
    try:
        boto3 = importlib.import_module("boto3")
        provider = importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.session.Session()
    return {"credential_provider": provider(session)} if session.get_credentials() is not None else {}
