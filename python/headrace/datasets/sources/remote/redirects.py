"""Redirects to another host: refused where a request holds a secret that obstore would pass on.

obstore follows redirects and has no switch for that. It removes `Authorization` before it asks another host, but neither AWS's
session token nor the keys of encryption, and the `Referer` that it adds holds the query of the address: a presigned URL, a
shared access signature. The client of such a store reaches every other host through a proxy at port 0, where no program can
listen. A redirect to another host then ends in an error before a byte is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from headrace.datasets.sources.remote.access import ENDPOINTS

__all__ = ["is_refused_redirect", "redirect_guard"]

_NOWHERE = "127.255.255.254:0"  # on the loopback interface, at a port that cannot be listened on
# Variables whose values travel in the query or in headers that obstore does not remove.
_SECRETS = {
    "s3": ("AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_SSE_CUSTOMER_KEY_BASE64"),
    "az": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_ENCRYPTION_KEY", "AZURE_ENCRYPTION_KEY"),
}
# Servers that give a machine its credentials: the metadata services of AWS and Azure, of ECS and EKS.
_CREDENTIAL_SERVERS = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23")
_NAMED_SERVERS = (
    "AWS_METADATA_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_ENDPOINT_URL_STS",
    "AZURE_AUTHORITY_HOST",
    "AZURE_IDENTITY_ENDPOINT",
    "AZURE_MSI_ENDPOINT",
    "IDENTITY_ENDPOINT",
)
_PROXIES = {"s3": "AWS_PROXY_URL", "az": "AZURE_PROXY_URL"}  # obstore's own variables
_TRUE = ("1", "true", "on", "yes", "y")


def redirect_guard(url: str) -> dict[str, str]:
    """Return obstore's client options that keep a store's secrets from other hosts; {} if it has none, or uses a proxy.

    The clouds' own addresses are not guarded: they do not redirect to hosts of others.
    """
    scheme = url.partition("://")[0].lower()
    addresses = _own_addresses(url, scheme)
    if not addresses or os.environ.get(_PROXIES.get(scheme, "")) or _needs_proxy(addresses, scheme):
        return {}
    named = [os.environ[name] for name in _NAMED_SERVERS if os.environ.get(name)]
    hosts = [*filter(None, map(_host, (*addresses, *named))), *_CREDENTIAL_SERVERS, *_login_servers(scheme)]
    return {"proxy_url": f"http://{_NOWHERE}", "proxy_excludes": ",".join(dict.fromkeys(hosts))}


def is_refused_redirect(error: BaseException) -> bool:
    """Return whether a request failed because of `redirect_guard`."""
    return _NOWHERE in str(error)


def _own_addresses(url: str, scheme: str) -> Sequence[str]:
    """Return the addresses that the requests are meant for, if they hold secrets; else none."""
    if scheme in ("http", "https"):
        return [url] if "?" in url else []
    if not (any(os.environ.get(name) for name in _SECRETS.get(scheme, ())) or (scheme == "s3" and _seeks_credentials())):
        return []
    return [os.environ[name] for name in ENDPOINTS[scheme] if os.environ.get(name)]


def _seeks_credentials() -> bool:
    """Return whether a role, a profile or a login gives AWS's credentials: these hold a session token, as a rule."""
    return not os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SKIP_SIGNATURE", "").lower() not in _TRUE


def _login_servers(scheme: str) -> Sequence[str]:
    """Return the hosts at which obstore exchanges a role's token for credentials."""
    if scheme == "az":
        return ["login.microsoftonline.com"]
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return [f"sts.{region}.amazonaws.com", "sts.amazonaws.com"] if scheme == "s3" else []


def _needs_proxy(addresses: Sequence[str], scheme: str) -> bool:
    """Return whether a proxy of the environment is in use: obstore takes one proxy only."""
    proxies = getproxies_environment()
    if scheme == "s3" and _seeks_credentials() and proxies.keys() & {"http", "https", "all"}:
        return True  # the servers of credentials may lie behind it
    for address in addresses:
        parts = urlsplit(address if "://" in address else f"https://{address}")
        if proxies.keys() & {parts.scheme, "all"} and not proxy_bypass(parts.netloc.rpartition("@")[2]):
            return True
    return False


def _host(address: str) -> str:
    """Return the host of an address as obstore spells it, for example `127.0.0.1` for `127.1`."""
    host = urlsplit(address if "://" in address else f"https://{address}").hostname or ""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host if host.isascii() else host.encode("idna").decode()
