"""Client certificates that name users (`verify_and_map`): our server and the real one let the same clients in."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.conformance.test_config import both

NOW = datetime.datetime.now(datetime.UTC)
OIDS = {
    "CN": NameOID.COMMON_NAME, "O": NameOID.ORGANIZATION_NAME, "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "C": NameOID.COUNTRY_NAME, "DC": NameOID.DOMAIN_COMPONENT,
}  # fmt: skip


class Maker:
    """A CA and what it signs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = self._sign("ca", [("CN", "ca")], [], self._key, is_ca=True)[0]

    def make(self, name: str, subject: list[tuple[str, str]], names: list[x509.GeneralName]) -> tuple[str, str]:
        return self._sign(name, subject, names, ec.generate_private_key(ec.SECP256R1()), is_ca=False)

    def _sign(
        self,
        name: str,
        subject: list[tuple[str, str]],
        names: list[x509.GeneralName],
        key: ec.EllipticCurvePrivateKey,
        *,
        is_ca: bool,
    ) -> tuple[str, str]:
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
        builder = x509.CertificateBuilder().issuer_name(issuer).public_key(key.public_key())
        builder = builder.subject_name(x509.Name([x509.NameAttribute(OIDS[kind], value) for kind, value in subject]))
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(NOW - datetime.timedelta(days=1))
        builder = builder.not_valid_after(NOW + datetime.timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        paths = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        paths[0].write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        paths[1].write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
        return str(paths[0]), str(paths[1])


USERS = """
    {user: "joe@example.org", permissions: {publish: "email"}}
    {user: "app.example.org", permissions: {publish: "dns"}}
    {user: "spiffe://example.org/app", permissions: {publish: "uri"}}
    {user: "CN=dn,OU=unit,O=org", permissions: {publish: "dn"}}
    {user: "CN=secret", password: pw, permissions: {publish: "secret"}}
"""
CLIENTS: dict[str, tuple[list[tuple[str, str]], list[x509.GeneralName], str]] = {
    "email": ([("CN", "x")], [x509.RFC822Name("joe@example.org"), x509.DNSName("app.example.org")], ""),
    "dns": ([("CN", "x")], [x509.RFC822Name("nobody@example.org"), x509.DNSName("app.example.org")], ""),
    "uri": ([("CN", "x")], [x509.UniformResourceIdentifier("spiffe://example.org/app")], ""),
    "dn": ([("O", "org"), ("OU", "unit"), ("CN", "dn")], [], ""),
    "dn-reordered": ([("CN", "dn"), ("O", "org"), ("OU", "unit")], [], ""),
    "dn-longer": ([("C", "DE"), ("O", "org"), ("OU", "unit"), ("CN", "dn")], [], ""),
    "nobody": ([("CN", "nobody")], [], ""),
    "nobody-by-name": ([("CN", "nobody")], [], '"user":"joe@example.org"'),
    "secret": ([("CN", "secret")], [], '"user":"x","pass":"pw"'),
    "no-secret": ([("CN", "secret")], [], ""),
}


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def ports(maker: Maker) -> Iterator[tuple[int, int]]:
    cert, key = maker.make("server", [("CN", "server")], [x509.DNSName("localhost")])
    files = f'cert_file: "{cert}", key_file: "{key}", ca_file: "{maker.ca}", verify_and_map: true'
    with both(f"tls {{ {files} }}\nauthorization {{ users: [{USERS}] }}") as found:
        yield found


def allowed(port: int, maker: Maker, own: tuple[str, str], login: str) -> list[bytes]:
    """What the client is told when it publishes to each of the subjects."""
    context = ssl.create_default_context(cafile=maker.ca)
    context.load_cert_chain(*own)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        line = b""
        while not line.endswith(b"\r\n"):
            line += plain.recv(1)
        assert json.loads(line[5:])["tls_verify"]
        with context.wrap_socket(plain, server_hostname="localhost") as sock, sock.makefile("rb") as file:
            lines = b"".join(b"PUB %b 1\r\nx\r\n" % name for name in (b"email", b"dns", b"uri", b"dn", b"secret"))
            options = ",".join(part for part in ('"verbose":false,"pedantic":false', login) if part)
            with suppress(ConnectionError):
                sock.sendall(f"CONNECT {{{options}}}\r\n".encode() + lines + b"PING\r\n")
            seen = []
            with suppress(ConnectionError):
                while (line := file.readline()) not in (b"PONG\r\n", b""):
                    seen.append(line)
            return seen


@pytest.mark.parametrize("name", CLIENTS)
def test_a_certificate_is_the_same_user_on_both(ports: tuple[int, int], maker: Maker, name: str) -> None:
    subject, names, login = CLIENTS[name]
    own = maker.make(name, subject, names)
    seen = [allowed(port, maker, own, login) for port in ports]
    assert seen[0] == seen[1]
    denied = [line for line in seen[1] if line.startswith(b"-ERR 'Permissions Violation")]
    if name.startswith("no") or name == "dn-longer":
        assert seen[1] == [b"-ERR 'Authorization Violation'\r\n"]
    else:
        assert len(denied) == 4
