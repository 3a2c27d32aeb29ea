"""Two certificate authorities and what they sign, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.file = folder / f"{name}.pem"
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True).add_extension(self._identifier(), critical=False)
        self.file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _identifier(self) -> x509.SubjectKeyIdentifier:
        return x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())

    def issue(self, name: str, *hosts: str, password: bytes = b"", days: int = 1) -> tuple[Path, Path]:
        """A certificate for `hosts`, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ipaddress.ip_address(h)) if h[0].isdigit() else x509.DNSName(h) for h in hosts]
        builder = _builder(_name(name), self._name, key.public_key(), days=days)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        from_issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier())
        builder = builder.add_extension(from_issuer, critical=False)
        cert_file, key_file = self._folder / f"{name}-cert.pem", self._folder / f"{name}-key.pem"
        cert_file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key_file.write_bytes(key.private_bytes(pem, pkcs8, hidden))
        return cert_file, key_file


class Pki:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ours, other = Authority(folder, "ours"), Authority(folder, "other")
        self.ca, self.other_ca = ours.file, other.file
        self.server = ours.issue("server", "127.0.0.1", "localhost")
        self.elsewhere = ours.issue("elsewhere", "nats.example")
        self.expired = ours.issue("expired", "127.0.0.1", days=-1)
        self.client = ours.issue("client", "client.example")
        self.stranger = other.issue("stranger", "client.example")
        self.locked = ours.issue("locked", "client.example", password=b"hunter2")


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int = 1
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(NOW - datetime.timedelta(days=2)).not_valid_after(
        NOW + datetime.timedelta(days=days)
    )
