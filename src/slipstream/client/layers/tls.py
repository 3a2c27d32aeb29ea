"""TLS as a layer: bytes in and out through memory, so that both drivers and every event loop use the same code.

Invariants: certificates are checked unless the caller brings a context that does not; every error of TLS is
a `TlsError` that names the option to look at. All methods of one layer are called under one lock: OpenSSL's objects
are not thread-safe.
"""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from dataclasses import dataclass

from slipstream.client.address import Address
from slipstream.client.auth import Path
from slipstream.client.options import ClientOptions
from slipstream.errors import ConnectionLostError, CredentialsError, TlsError

READ_SIZE = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How connections are secured. Files are read for each connection: a renewed certificate is picked up."""

    context: ssl.SSLContext | None = None
    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    hostname: str = ""

    @classmethod
    def from_options(cls, options: ClientOptions) -> Tls:
        """As the options of a client say."""
        return cls(
            context=options.tls if isinstance(options.tls, ssl.SSLContext) else None,
            ca=options.tls_ca,
            cert=options.tls_cert,
            key=options.tls_key,
            hostname=options.tls_hostname,
        )

    def layer(self, server: Address) -> TlsLayer:
        """The client's end of TLS to `server`. Raises CredentialsError for files that cannot be used."""
        return TlsLayer(self.context or self._context(), self.hostname or server.tls_name or server.host, str(server))

    def _context(self) -> ssl.SSLContext:
        if self.ca is not None:
            _check_readable("tls_ca", self.ca)
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as exc:
            raise CredentialsError(
                f"tls_ca {self.ca}: must contain certificates in PEM format: {exc.reason or exc}"
            ) from exc
        if self.cert is not None:
            for name, file in (("tls_cert", self.cert), ("tls_key", self.key)):
                if file is not None:
                    _check_readable(name, file)
            try:
                # Without a password OpenSSL would ask for one at the terminal.
                context.load_cert_chain(self.cert, self.key, password=_no_password)
            except (ssl.SSLError, CredentialsError) as exc:
                detail = exc.reason or exc if isinstance(exc, ssl.SSLError) else exc
                raise CredentialsError(f"tls_cert {self.cert}, tls_key {self.key}: not usable: {detail}") from exc
        return context


class TlsLayer:
    """The client's end of TLS, as a layer."""

    def __init__(self, context: ssl.SSLContext, hostname: str, server: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)
        except ValueError as exc:
            raise CredentialsError(f"{server}: {hostname!r} cannot be a certificate's name: {exc}") from exc
        self._hostname = hostname
        self._server = server
        self._is_ready = False

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is done."""
        return self._is_ready

    def begin(self) -> None:
        """Send the ClientHello."""
        self._shake_hands()

    def received(self, data: bytes) -> bytes:
        """Decrypt what arrived, or go on with the handshake."""
        self._incoming.write(data)
        if not self._is_ready:
            self._shake_hands()
        return self._read() if self._is_ready else b""

    def send(self, data: bytes) -> None:
        """Encrypt."""
        try:
            self._object.write(data)
        except ssl.SSLError as exc:
            raise self._error(exc) from exc

    def finish(self) -> None:
        """Announce the end of the data (close_notify)."""
        if self._is_ready:
            with suppress(ssl.SSLError):  # the peer's own close_notify is not awaited
                self._object.unwrap()

    def take(self) -> bytes:
        """The records to be sent."""
        return self._outgoing.read()

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as exc:
            raise self._error(exc) from exc
        self._is_ready = True

    def _read(self) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._object.read(READ_SIZE):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as exc:
            if not parts:
                raise self._error(exc) from exc
        else:
            if not parts:
                raise ConnectionLostError("the server closed the connection")
        return b"".join(parts)

    def _error(self, exc: ssl.SSLError) -> TlsError:
        if isinstance(exc, ssl.SSLCertVerificationError):
            text = f"{self._server}: the server's certificate was rejected: {exc.verify_message}"
            # 62 and 64: the name, the address; X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
            hint = "tls_hostname" if exc.verify_code in (62, 64) else "tls_ca"
            return TlsError(f"{text} (expected {self._hostname!r}; see {hint})")
        reason = exc.reason or str(exc)
        text = f"{self._server}: TLS failed: {reason}"
        if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
            text += " (the server requires a client certificate, or rejected it: see tls_cert and tls_key)"
        elif reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
            text += " (the server does not use TLS at this point: check tls_first and the port)"
        return TlsError(text)


def _no_password() -> str:
    raise CredentialsError("tls_key must not have a password; for one with a password, pass an ssl.SSLContext as tls")


def _check_readable(name: str, file: str | Path) -> None:
    try:
        with open(file, "rb"):
            pass
    except OSError as exc:
        raise CredentialsError(f"{name} {os.fspath(file)}: {exc.strerror}") from exc
