"""One HTTP call with its deadline, for judges, services of a sandbox and environments on a server.

A call has its own connection and follows no redirect unless asked to: a POST would arrive as a GET, perhaps on another
host. Tries and budgets are the caller's. httpx2, a tenth of a second to import, is loaded by the first client.
"""

import ipaddress
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from paceline.errors import ConfigError

if TYPE_CHECKING:
    import httpx2

PASSING_STATUSES = (408, 425, 429)
"""Statuses besides 5xx that may succeed later: the request was right."""


class HttpCallError(Exception):
    """Failure of a call, in a sentence."""

    def __init__(self, sentence: str, *, was_sent: bool) -> None:
        """`was_sent`: False where the server knows nothing of the request."""
        super().__init__(sentence)
        self.was_sent = was_sent


class HttpTimeout(HttpCallError):
    """Failure of a call whose response was not there in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpReply:
    """Response of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None
    """None: it is longer than the call's limit. One that breaks off is here as far as it came."""

    @property
    def is_success(self) -> bool:
        """True for a status 2xx."""
        return 200 <= self.status < 300

    @property
    def may_pass(self) -> bool:
        """True for an error that may be over at the next try."""
        return self.status >= 500 or self.status in PASSING_STATUSES


class HttpClient:
    """Calls of one server, from any number of threads."""

    def __init__(self, url: str) -> None:
        """`url`: an address of the server, which decides whether a proxy of the environment is used.

        Raises:
            ConfigError: that proxy is of a kind that cannot be used.
        """
        import httpx2

        try:
            self._client = httpx2.Client(
                verify=ssl.create_default_context(),
                proxy=_proxy_of(url),
                trust_env=False,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
                headers={"User-Agent": "paceline", "Accept-Encoding": "identity", "Connection": "close"},
            )
        except (ValueError, ImportError) as error:  # its sentence may hold the proxy's password
            raise ConfigError(
                f"the environment's proxy for {urlsplit(url).scheme} addresses cannot be used "
                f"({type(error).__name__}); name one by http:// or https://, or this host in NO_PROXY"
            ) from None

    def call(
        self,
        url: str,
        *,
        seconds: float,
        limit: int,
        data: bytes | None = None,
        headers: Mapping[str, str] = {},
        follow_redirects: bool = False,
    ) -> HttpReply:
        """Get an address, or post `data` there; the reply has at most `limit` bytes.

        Each read waits for at most `seconds`, and none begins after that.

        Raises:
            HttpTimeout: there was no connection in time, or no whole reply.
            HttpCallError: the connection failed.
        """
        import httpx2

        method, until = "GET" if data is None else "POST", time.monotonic() + seconds
        try:
            request = self._client.build_request(
                method, url, content=data, headers=headers, timeout=max(0.001, seconds)
            )
            response = self._client.send(request, stream=True, follow_redirects=follow_redirects)
            try:
                body = _read(response, until=until, limit=limit)
            finally:
                response.close()
        except (httpx2.ConnectTimeout, httpx2.PoolTimeout):
            raise HttpTimeout(f"no connection within {seconds:.3g} seconds", was_sent=False) from None
        except httpx2.TimeoutException:
            raise HttpTimeout(f"no response within {seconds:.3g} seconds", was_sent=True) from None
        except (httpx2.ConnectError, httpx2.ProxyError, httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise HttpCallError(str(error), was_sent=False) from None
        except (httpx2.HTTPError, OSError) as error:
            raise HttpCallError(f"{type(error).__name__}: {error}", was_sent=True) from None
        return HttpReply(status=response.status_code, headers=response.headers, body=body)


def _read(response: "httpx2.Response", *, until: float, limit: int) -> bytes | None:
    """Read a body piece by piece; None: it has more than `limit` bytes."""
    import httpx2

    body = bytearray()
    with suppress(httpx2.RemoteProtocolError):  # it broke off: whoever reads it sees that
        for piece in response.iter_raw():
            body += piece
            if len(body) > limit:
                return None
            if time.monotonic() > until:
                raise httpx2.ReadTimeout("the body was not whole in time")
    return bytes(body)


def is_loopback(host: str) -> bool:
    """Return True for a name or an address of this machine."""
    with suppress(ValueError):  # a name
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def _proxy_of(url: str) -> str | None:
    """Return the environment's proxy for an address; None for this machine, which no proxy reaches."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxy = getproxies().get(parts.scheme)
    if not proxy or is_loopback(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
