"""Certificate files become the context that the server speaks TLS with."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from slipstream.errors import UsageError

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How clients are met."""

    context: ssl.SSLContext
    first: bool  # TLS from the first byte on; otherwise INFO comes before it, in plain text
    timeout: float  # seconds for the handshake

    @property
    def verify(self) -> bool:
        """Whether clients must show a certificate."""
        return self.context.verify_mode is ssl.CERT_REQUIRED


def settings(
    context: ssl.SSLContext | None,
    *,
    cert: PathLike | None,
    key: PathLike | None,
    ca: PathLike | None,
    verify: bool,
    first: bool,
    timeout: float,
) -> Tls | None:
    """A ready context, or one made of files; None if neither is given."""
    if context is not None:
        if cert is not None or key is not None or ca is not None or verify:
            raise UsageError("tls is a context that is ready: tls_cert, tls_key, tls_ca and tls_verify are not for it")
        return Tls(context=context, first=first, timeout=timeout)
    if cert is None:
        if key is not None or ca is not None or verify or first:
            raise UsageError("TLS needs tls_cert, or a context as tls")
        return None
    if verify and ca is None:
        raise UsageError("tls_verify needs tls_ca: whose certificates are clients to show?")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(cert, key)
        if ca is not None:
            made.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as exc:
        raise UsageError(f"the files for TLS cannot be used: {exc}") from exc
    if verify:
        made.verify_mode = ssl.CERT_REQUIRED
    return Tls(context=made, first=first, timeout=timeout)
