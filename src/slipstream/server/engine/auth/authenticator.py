"""Authentication of clients: by password, token, signed nonce (nkey), certificate or JWT.

Plain-text secrets are compared in constant time. A secret that is stored as a bcrypt hash is not compared here, since
that takes a good part of a second: `Hashed` says what to compare, and the driver does so in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hmac import compare_digest
from typing import NamedTuple

from slipstream.errors import UsageError
from slipstream.server.engine.auth import jwt
from slipstream.server.engine.auth.jwt import SECOND, AccountClaims
from slipstream.server.engine.auth.jwt import Verify as Verify
from slipstream.server.engine.auth.permissions import Rules
from slipstream.server.engine.auth.users import (
    CONNECTION_TYPES,
    DEFAULT_ACCOUNT,
    NO_LIMIT,
    AccountOptions,
    Permissions,
    User,
    check_users,
    is_hash,
)
from slipstream.wire import ConnectOptions
from slipstream.wire.nkeys import decode_signature, public_key

STANDARD, WEBSOCKET = CONNECTION_TYPES


def reject_signatures(_: bytes, __: bytes, ___: bytes) -> bool:
    """The `verify` of an engine without nkeys."""
    return False


class Certificate(NamedTuple):
    """The names in a client's certificate, in the order in which they are tried, and its subject."""

    names: tuple[str, ...] = ()  # e-mail addresses, then DNS names, then URIs
    subject: tuple[tuple[str, str], ...] = ()  # (type, value), as in ("CN", "joe")


class Credentials(NamedTuple):
    """Everything that a client authenticates with."""

    options: ConnectOptions
    nonce: str = ""
    address: str = ""
    connection_type: str = STANDARD
    certificate: Certificate | None = None  # only where users are identified by certificates
    by_certificate: bool = False
    now: int = 0


class Identity:
    """An authenticated user, with permissions compiled once for all of its connections."""

    __slots__ = (
        "account",
        "connection_types",
        "expires",
        "key",
        "max_payload",
        "max_subscriptions",
        "name",
        "rules",
        "user",
    )

    def __init__(self, user: User | None, options: AccountOptions | None = None) -> None:
        self.user: User | None = user
        self.account: str = user.account if user is not None else DEFAULT_ACCOUNT
        self.rules: Rules | None = _rules(user.permissions) if user is not None else None
        self.name: str = (user.name or user.nkey or ("[REDACTED]" if user.token else "")) if user is not None else ""
        self.key: str = f"{self.name}\0{user.token}" if user is not None else ""  # unique
        self.connection_types: tuple[str, ...] = user.connection_types if user is not None else ()
        self.max_subscriptions: int = options.max_subscriptions if options is not None else NO_LIMIT
        self.max_payload: int = options.max_payload if options is not None else NO_LIMIT
        self.expires: int = 0  # ns; 0 is never

    @property
    def shown_name(self) -> str:
        """The name for reports; empty for the user that stands for clients without one."""
        return "" if self.name.startswith("\0") else self.name

    @property
    def password(self) -> str:
        return self.user.password if self.user is not None else ""


class Hashed(NamedTuple):
    """A secret to compare with a hash: if they match, the client has that identity (None for an unknown name)."""

    secret: str
    hash: str
    identity: Identity | None


class Refused(NamedTuple):
    """Authentication failed; the reason is for the log, never for the client."""

    reason: str


Verdict = Identity | Hashed | Refused


class Authenticator:
    """Decides who a client is: by the configured users, or by JWTs; without either every client is accepted."""

    def __init__(
        self, users: Iterable[User], verify: Verify, *, accounts: Sequence[AccountOptions] = (), no_auth_user: str = "",
        operators: Sequence[str] = (), account_tokens: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`verify` checks signatures; `operators` and `account_tokens` are JWTs, and exclude configured users."""
        self._tokens = TokenAuthenticator(operators, account_tokens, verify)
        configured = {account.name: account for account in (*accounts, *self._tokens.accounts)}
        identities = [Identity(user, configured.get(user.account)) for user in check_users(users)]
        if operators and identities:
            raise UsageError("users must not be configured for a server with an operator: they come from JWTs")
        self._users = UserAuthenticator(identities, no_auth_user, verify)
        self._anyone = Identity(None, configured.get(DEFAULT_ACCOUNT))
        self.by_jwt: bool = bool(operators)
        self.required: bool = bool(identities) or self.by_jwt
        self.nonces: bool = self._users.has_nkeys or self.by_jwt  # clients must get a nonce to sign
        self.default: Identity | None = self._users.default  # of clients without credentials
        names = (DEFAULT_ACCOUNT, *(identity.account for identity in identities), *configured)
        self.accounts: dict[str, AccountOptions] = {
            name: configured.get(name, AccountOptions(name=name)) for name in dict.fromkeys(names)
        }
        self.system_account: str = self._tokens.system_account

    def token_of(self, account: str) -> str:
        """The JWT of an account; empty without one."""
        return self._tokens.token_of(account)

    def expiry_of(self, account: str) -> int:
        """When an account's JWT expires, in nanoseconds; 0 is never."""
        return self._tokens.expiry_of(account)

    def renew(self, old: Identity, before: Authenticator, *, by_default: bool) -> Identity | None:
        """The identity of a client that an earlier authenticator admitted; None if its credentials are not valid any
        more. The client's secret is not known here: it is valid if the configured one has not changed."""
        if self.by_jwt or before.by_jwt:
            same = self.token_of(old.account) == before.token_of(old.account) != ""
            return old if same and self.by_jwt else None
        if not self.required:
            return self._anyone if old.account == DEFAULT_ACCOUNT else None
        return self._users.renew(old, by_default=by_default)

    def admit(self, shown: Credentials) -> Verdict:
        """Identify the client. The time it takes reveals nothing about what was wrong."""
        if not self.required:
            return self._anyone
        return self._tokens.admit(shown) if self.by_jwt else self._users.admit(shown)


class UserAuthenticator:
    """Authentication by the configured users: nkey, certificate, password or token, in this order."""

    def __init__(self, identities: Sequence[Identity], no_auth_user: str, verify: Verify) -> None:
        self._verify = verify
        self._named = {m.user.name: m for m in identities if m.user is not None and m.user.name}
        self._nkeys = {m.user.nkey: m for m in identities if m.user is not None and m.user.nkey}
        self._tokens = [m for m in identities if m.user is not None and m.user.token]
        if len(self._tokens) > 1 and any(m.user is not None and is_hash(m.user.token) for m in self._tokens):
            raise UsageError("a token that is stored as a hash must be the only token")
        self._subjects = {subject: m for name, m in self._named.items() if (subject := _parse_subject(name))}
        # Compared in place of an unknown user's password, so that the time does not tell which names exist.
        self._decoy = next((m.password for m in self._named.values() if is_hash(m.password)), "")
        self.default: Identity | None = self._find_default(no_auth_user)

    @property
    def has_nkeys(self) -> bool:
        return bool(self._nkeys)

    def _find_default(self, name: str) -> Identity | None:
        if not name:
            return None
        identity = self._named.get(name) or self._nkeys.get(name)
        if identity is None:
            raise UsageError(f"no_auth_user {name!r} is not among the users")
        return identity

    def renew(self, old: Identity, *, by_default: bool) -> Identity | None:
        """See `Authenticator.renew`."""
        if by_default:
            found = self.default
            return found if found is not None and (found.name, found.account) == (old.name, old.account) else None
        if old.user is None:
            return None
        user = old.user
        found = self._named.get(user.name) or self._nkeys.get(user.nkey)
        if user.token:
            found = next((one for one in self._tokens if one.user is not None and one.user.token == user.token), None)
        if found is None or found.user is None or found.account != old.account:
            return None
        same = (found.user.password, found.user.certificate) == (user.password, user.certificate)
        return found if same and found.connection_types == old.connection_types else None

    def admit(self, shown: Credentials) -> Verdict:
        verdict = self._identify(shown)
        identity = verdict.identity if isinstance(verdict, Hashed) else verdict
        if isinstance(identity, Identity) and not _fits(identity.connection_types, shown):
            return Refused(f"user {identity.name!r} may not use a connection of type {shown.connection_type}")
        return verdict

    def _identify(self, shown: Credentials) -> Verdict:
        options = shown.options
        has_credentials = options.user or options.password or options.auth_token or options.nkey
        if self.default is not None and not has_credentials and not shown.by_certificate:
            return self.default
        if options.nkey and self._nkeys:
            return self._by_nkey(options.nkey, options.sig or "", shown.nonce)
        if shown.by_certificate and self._named:
            found = self._by_certificate(shown.certificate)
            if found is None:
                return Refused("no user is named in the client's certificate")
            return found if not found.password else self._by_password(found, options)
        if options.user and (options.user in self._named or not self._tokens):
            return self._by_password(self._named.get(options.user), options)
        return self._by_token(options)

    def _by_nkey(self, nkey: str, sig: str, nonce: str) -> Verdict:
        identity = self._nkeys.get(nkey)
        if identity is None or not _is_signed(nkey, sig, nonce, self._verify):
            return Refused(f"nkey {nkey[:8]}… is unknown, or did not sign the nonce")
        return identity

    def _by_certificate(self, certificate: Certificate | None) -> Identity | None:
        if certificate is None:
            return None
        for name in certificate.names:
            if name in self._named:
                return self._named[name]
        return self._subjects.get(tuple(sorted(certificate.subject))) if certificate.subject else None

    def _by_password(self, identity: Identity | None, options: ConnectOptions) -> Verdict:
        secret = options.password or ""
        wanted = identity.password if identity is not None else self._decoy
        if is_hash(wanted):
            return Hashed(secret, wanted, identity)
        right = _same(secret, wanted)
        needs_none = (
            identity is not None and identity is self.default and identity.user is not None and identity.user.anyone
        )
        if identity is None or not (wanted or needs_none) or not right:
            return Refused(f"wrong name or password for user {(options.user or '')[:64]!r}")
        return identity

    def _by_token(self, options: ConnectOptions) -> Verdict:
        found: Verdict = Refused("no known user, token or signature")
        for identity in self._tokens:  # compare with all of them: the time must not depend on which one matches
            assert identity.user is not None
            if is_hash(identity.user.token):
                if options.auth_token and isinstance(found, Refused):
                    found = Hashed(options.auth_token, identity.user.token, identity)
            elif _same(options.auth_token, identity.user.token):
                found = identity
        return found


class TokenAuthenticator:
    """Authentication by JWTs: a user's, signed by an account, which is signed by a trusted operator."""

    def __init__(self, operators: Sequence[str], account_tokens: Sequence[str], verify: Verify) -> None:
        self._verify = verify
        trusted = [jwt.operator(token, verify) for token in operators]
        self._claims: dict[str, AccountClaims] = {}
        for token in account_tokens:
            account = jwt.account(token, verify)
            if not any(account.claims.issuer in operator.keys for operator in trusted):
                name = account.claims.name or account.claims.subject
                raise UsageError(f"account {name!r} is not signed by a trusted operator")
            self._claims[account.claims.subject] = account
        self.system_account: str = next(
            (operator.system_account for operator in trusted if operator.system_account), ""
        )

    @property
    def accounts(self) -> Iterable[AccountOptions]:
        return [account.options for account in self._claims.values()]

    def token_of(self, account: str) -> str:
        """The JWT of an account; empty if there is none."""
        claims = self._claims.get(account)
        return claims.claims.token if claims is not None else ""

    def expiry_of(self, account: str) -> int:
        claims = self._claims.get(account)
        return claims.claims.expires * SECOND if claims is not None else 0

    def admit(self, shown: Credentials) -> Verdict:
        try:
            return self._identify(shown)
        except UsageError as exc:
            return Refused(str(exc))

    def _identify(self, shown: Credentials) -> Verdict:
        if not shown.options.jwt:
            return Refused("no JWT of a user")
        claims = jwt.decode(shown.options.jwt, "user", self._verify)
        account = self._claims.get(str(claims.body.get("issuer_account") or claims.issuer))
        if account is None:
            return Refused("the account of the user's JWT is unknown")
        if not claims.is_current(shown.now) or not account.claims.is_current(shown.now):
            return Refused("the JWT of the user or of its account is not valid at this time")
        user = jwt.user(claims, account)
        if user.bearer and not account.bearer:
            return Refused("the account does not allow bearer tokens")
        if not user.bearer and not _is_signed(claims.subject, shown.options.sig or "", shown.nonce, self._verify):
            return Refused("the nonce is not signed by the user of the JWT")
        if account.is_revoked(claims.subject, claims.issued):
            return Refused("the user was revoked")
        if not user.may_come_from(shown.address):
            return Refused(f"the user may not come from {shown.address}")
        identity = Identity(None)
        identity.account, identity.name, identity.key = account.claims.subject, claims.subject, claims.token
        identity.rules = _rules(user.permissions)
        identity.max_subscriptions, identity.max_payload = user.max_subscriptions, user.max_payload
        ends = [claims.expires, account.claims.expires]
        identity.expires = min((end * SECOND for end in ends if end), default=0)
        if not _fits(user.connection_types, shown):
            return Refused(f"the user may not use a connection of type {shown.connection_type}")
        return identity


def _is_signed(nkey: str, sig: str, nonce: str, verify: Verify) -> bool:
    """Whether the owner of an nkey signed the nonce of its connection."""
    signed = decode_signature(sig)
    return bool(nonce and signed) and verify(public_key(nkey), signed, nonce.encode())


def _rules(permissions: Permissions | None) -> Rules | None:
    return Rules(permissions) if permissions is not None else None


def _fits(types: tuple[str, ...], shown: Credentials) -> bool:
    return not types or shown.connection_type in types


def _same(seen: str | None, wanted: str) -> bool:
    return compare_digest((seen or "").encode(), wanted.encode())


_PART = re.compile(r"\s*([A-Za-z0-9.]+)\s*=\s*((?:\\.|[^,+\\])*)\s*(?:[,+]|\Z)")


def _parse_subject(name: str) -> tuple[tuple[str, str], ...]:
    """`CN=joe,OU=x` in any order as sorted pairs; empty if the name is not a certificate subject."""
    parts, at = list[tuple[str, str]](), 0
    while at < len(name):
        found = _PART.match(name, at)
        if found is None:
            return ()
        parts.append((found[1].upper(), re.sub(r"\\(.)", r"\1", found[2]).strip()))
        at = found.end()
    return tuple(sorted(parts))
