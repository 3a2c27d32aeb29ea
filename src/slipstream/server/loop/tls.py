"""TLS of a listener: its context, made of certificate files, and the names in a client's certificate."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.errors import UsageError
from slipstream.server.engine.auth.authenticator import Certificate

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of one listener."""

    context: ssl.SSLContext
    first: bool  # TLS from the first byte, instead of after INFO, in plain text
    timeout: float  # seconds for the handshake
    map_users: bool = False  # users are identified by their certificates

    @property
    def verify(self) -> bool:
        """Whether clients must present a certificate."""
        return self.context.verify_mode is ssl.CERT_REQUIRED


def make_tls(
    context: ssl.SSLContext | None,
    *,
    cert: PathLike | None,
    key: PathLike | None,
    ca: PathLike | None,
    verify: bool,
    map_users: bool,
    first: bool,
    timeout: float,
    min_version: str,
) -> Tls | None:
    """TLS with a ready context, or with one made of files; None without either. Errors name the options of a server."""
    if context is not None:
        if cert is not None or key is not None or ca is not None or verify:
            raise UsageError("tls is an ssl.SSLContext; tls_cert, tls_key, tls_ca and tls_verify cannot be set as well")
        return Tls(context=context, first=first, timeout=timeout, map_users=map_users)
    verify = verify or map_users
    if cert is None:
        if key is not None or ca is not None or verify or first:
            raise UsageError("TLS needs tls_cert, or a context as tls")
        return None
    if verify and ca is None:
        raise UsageError("tls_verify needs tls_ca, the authorities that sign client certificates")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_3 if min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    try:
        made.load_cert_chain(cert, key)
        if ca is not None:
            made.load_verify_locations(ca)
    except (OSError, ssl.SSLError) as exc:
        raise UsageError(f"cannot load the TLS certificates: {exc}") from exc
    if verify:
        made.verify_mode = ssl.CERT_REQUIRED
    return Tls(context=made, first=first, timeout=timeout, map_users=map_users)


_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST", "domainComponent": "DC", "userId": "UID",
    "streetAddress": "STREET", "serialNumber": "SERIALNUMBER", "emailAddress": "EMAILADDRESS", "surname": "SN",
    "givenName": "GN", "postalCode": "POSTALCODE", "title": "T",
}  # fmt: skip


def certificate_of(peer: Mapping[str, Any] | None) -> Certificate | None:
    """The names in a client's verified certificate, from the result of `getpeercert`; None without one."""
    if not peer:
        return None
    alternatives = peer.get("subjectAltName", ())
    names = [value for kind in ("email", "DNS", "URI") for seen, value in alternatives if seen == kind]
    subject = [(_SHORT.get(name, name.upper()), value) for part in peer.get("subject", ()) for name, value in part]
    return Certificate(tuple(names), tuple(subject))
