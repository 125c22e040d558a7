"""Access to each kind of store: endpoints and credentials from the environment, and hints for when they are missing.

obstore reads the variables of each cloud's own tools; `docs/reference/packing.md` lists them.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from headrace.errors import SourceError

__all__ = ["ENDPOINTS", "access_options", "credentials_hint", "is_unknown_user"]

# Variables that name an endpoint. If one holds an http:// address, plain HTTP is allowed.
ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
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
# One of these must name the account; the emulator Azurite has its own.
_AZURE_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR")
# Parts of the addresses of the metadata servers of AWS, Google and Azure, which give a machine its role's credentials.
_METADATA_PATHS = ("/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity/")


def access_options(url: str) -> dict[str, Any]:
    """Return the arguments for obstore's `from_url` but retries and timeout. Raise SourceError if a setting is missing."""
    scheme = url.partition("://")[0].lower()
    options: dict[str, Any] = {"client_options": {"allow_http": _plain(scheme)}}
    if scheme == "s3" and not os.environ.get("AWS_ACCESS_KEY_ID"):
        options |= _boto3_credentials()
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")  # the variable of Google's own libraries
    if scheme == "gs" and emulator:
        address = emulator if "://" in emulator else f"http://{emulator}"
        anonymous = {
            "gcs_base_url": address.rstrip("/"),
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        options["service_account_key"] = json.dumps(anonymous)
    if scheme == "az" and not any(os.environ.get(name) for name in _AZURE_ACCOUNTS):
        raise SourceError(f"{url} cannot be opened: the storage account is not known", hint=_HINTS["az"])
    return options


def credentials_hint(url: str) -> str | None:
    """Return a hint on how to give credentials for a store; None for stores that need none."""
    return _HINTS.get(url.partition("://")[0].lower())


def is_unknown_user(error: BaseException) -> bool:
    """Return whether a request failed because neither the environment nor a role of the machine gives credentials."""
    words = str(error)
    return any(part in words for part in _METADATA_PATHS)


def _plain(scheme: str) -> bool:
    if scheme in ("http", "https"):
        return scheme == "http"
    if scheme == "az" and os.environ.get("AZURE_STORAGE_USE_EMULATOR"):
        return True
    named = [os.environ.get(name, "") for name in ENDPOINTS.get(scheme, ())]
    return any(name and not name.startswith("https://") for name in named)


def _boto3_credentials() -> dict[str, Any]:
    """Return boto3's credential chain if boto3 is installed and finds credentials; else {}: obstore uses its own chain."""
    if os.environ.get("AWS_SKIP_SIGNATURE"):
        return {}
    try:
        boto3 = importlib.import_module("boto3")
        provider = importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider
    except ImportError:
        return {}
    session = boto3.session.Session()
    return {"credential_provider": provider(session)} if session.get_credentials() is not None else {}
