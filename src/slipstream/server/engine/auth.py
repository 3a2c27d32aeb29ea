"""CONNECT becomes a user, or nobody: name and password, or a token, compared in constant time; or a signed nonce."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hmac import compare_digest

from slipstream.server.engine.nkeys import public_key, signature
from slipstream.server.engine.permissions import Rules
from slipstream.server.engine.users import DEFAULT_ACCOUNT, User, check_users
from slipstream.wire import ConnectOptions

Verify = Callable[[bytes, bytes, bytes], bool]  # public key, signature, message


def nobody_signs(_: bytes, __: bytes, ___: bytes) -> bool:
    """For an engine without nkeys."""
    return False


class Member:
    """A user, with the permissions compiled once for all connections."""

    __slots__ = ("account", "rules", "user")

    def __init__(self, user: User | None) -> None:
        self.user = user
        self.account = user.account if user is not None else DEFAULT_ACCOUNT
        self.rules = Rules(user.permissions) if user is not None and user.permissions is not None else None


class Gate:
    """Lets clients in; without users, everyone."""

    def __init__(self, users: Iterable[User], verify: Verify) -> None:
        """`verify` checks signatures of nkeys."""
        members = [Member(user) for user in check_users(users)]
        self.required = bool(members)
        self.accounts = tuple(dict.fromkeys((DEFAULT_ACCOUNT, *(member.account for member in members))))
        self._anyone = Member(None)
        self._named = {m.user.name: m for m in members if m.user is not None and m.user.name}
        self._keys = {m.user.nkey: m for m in members if m.user is not None and m.user.nkey}
        self._verify = verify
        self.nonces = bool(self._keys)  # whether clients are given something to sign
        self._tokens = [m for m in members if m.user is not None and m.user.token]

    def admit(self, options: ConnectOptions, nonce: str) -> Member | None:
        """Who the client is; None if it may not come in. How long that takes says nothing about what was wrong."""
        if not self.required:
            return self._anyone
        if options.nkey and self._keys:
            return self._signer(options.nkey, options.sig or "", nonce)
        found: Member | None = None
        for member in self._tokens:  # all of them, whichever it is
            assert member.user is not None
            if _same(options.auth_token, member.user.token):
                found = member
        named = self._named.get(options.user or "")
        right = _same(options.password, named.user.password if named is not None and named.user is not None else "")
        if options.user and named is not None:
            found = named if right else None
        return found

    def _signer(self, nkey: str, sig: str, nonce: str) -> Member | None:
        member = self._keys.get(nkey)
        signed = signature(sig)
        if member is None or not nonce or not signed:
            return None
        return member if self._verify(public_key(nkey), signed, nonce.encode()) else None


def _same(seen: str | None, wanted: str) -> bool:
    return compare_digest((seen or "").encode(), wanted.encode())
