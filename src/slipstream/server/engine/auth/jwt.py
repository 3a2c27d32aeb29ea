"""Decoder of NATS JWTs: an operator's keys, an account's limits and rules, a user's permissions.

Tokens are signed with Ed25519: those of version 2 (`ed25519-nkey`) and the older ones of version 1 (`ed25519`), which
are converted to the form of version 2. Nothing in a token is used before its signature is verified with the key of its
issuer; whether that key is trusted follows from the token above it in the chain.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from slipstream.errors import UsageError
from slipstream.server.engine.auth.account_limits import AccountLimits
from slipstream.server.engine.auth.users import (
    CONNECTION_TYPES,
    NO_LIMIT,
    AccountOptions,
    Permissions,
    Responses,
    at_most,
)
from slipstream.wire import is_valid_filter
from slipstream.wire.nkeys import Kind, public_key

Verify = Callable[[bytes, bytes, bytes], bool]  # public key, signature, message

SECOND = 1_000_000_000
MAX_EXPANSIONS = 4096  # subjects that the templates of one permission may expand to
_KINDS = {  # of the subject, and of the issuer, which signs
    "operator": (Kind.OPERATOR, Kind.OPERATOR),
    "account": (Kind.ACCOUNT, Kind.OPERATOR),
    "user": (Kind.USER, Kind.ACCOUNT),
}
_FIXED_BY_ROLE = (
    "resp", "subs", "data", "payload", "src", "times", "times_location", "bearer_token", "allowed_connection_types",
)  # fmt: skip
_TEMPLATE = re.compile(r"\{\{([^}]*)\}\}")
_decode_json = msgspec.json.Decoder(dict[str, Any]).decode


class Claims(NamedTuple):
    """A token with a valid signature."""

    subject: str
    issuer: str
    name: str
    issued: int  # seconds
    expires: int  # seconds; 0 is never
    not_before: int
    body: Mapping[str, Any]  # what is under `nats`
    token: str

    def is_current(self, now: int) -> bool:
        """`now` in nanoseconds."""
        seconds = now // SECOND
        return not (self.expires and seconds >= self.expires) and seconds >= self.not_before


def decode(token: str, kind: str, verify: Verify) -> Claims:
    """The claims of a token of that kind; raises UsageError, whose text never contains the token."""
    try:
        head, middle, tail = token.strip().split(".")
        header, payload = _decode_json(_base64(head)), _decode_json(_base64(middle))
        signed, signature = f"{head}.{middle}".encode(), _base64(tail)
        body = payload.get("nats")
        if header.get("alg") == "ed25519":
            signed, body = middle.encode(), _as_version_2(payload)
        claims = Claims(
            subject=_text(payload, "sub"), issuer=_text(payload, "iss"), name=_text(payload, "name"),
            issued=_number(payload, "iat"), expires=_number(payload, "exp"), not_before=_number(payload, "nbf"),
            body=body if isinstance(body, dict) else {}, token=token.strip(),
        )  # fmt: skip
    except (ValueError, binascii.Error, msgspec.MsgspecError, RecursionError) as exc:
        raise UsageError(f"not a JWT of {kind}: {type(exc).__name__}") from None
    if header.get("alg") not in ("ed25519-nkey", "ed25519"):
        raise UsageError(f"the algorithm of a JWT must be ed25519-nkey (version 1: ed25519), got {header.get('alg')!r}")
    seen = claims.body.get("type")
    if seen != kind:
        raise UsageError(f"JWT must be of type {kind!r}, got {seen!r}")
    own, issuer_kind = _KINDS[kind]
    public_key(claims.subject, own)
    if not verify(public_key(claims.issuer, issuer_kind), signature, signed):
        raise UsageError(f"the signature of the JWT of {kind} {claims.name or claims.subject!r} is wrong")
    return claims


def _as_version_2(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The `nats` part of a version 1 token: there the type is beside it, and a limit of 0 means no limit."""
    body = payload.get("nats") or {}
    if not isinstance(body, dict) or body.get("version", 1) != 1:
        raise ValueError("version")
    found = {name: value for name, value in body.items() if name not in ("payload", "subs") or value}
    limits = body.get("limits")
    open_limits = dict.fromkeys(("conn", "subs", "payload"), NO_LIMIT) | (limits if isinstance(limits, dict) else {})
    return {"subs": NO_LIMIT, "payload": NO_LIMIT} | found | {"type": payload.get("type"), "limits": open_limits}


def _base64(text: str) -> bytes:
    return base64.b64decode(text.translate(str.maketrans("-_", "+/")) + "=" * (-len(text) % 4), validate=True)


def _text(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name, "")
    if not isinstance(value, str):
        raise ValueError(name)
    return value


def _number(payload: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = payload.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(name)
    return value


# Operators.


@dataclass(frozen=True, slots=True)
class Operator:
    """The issuer of trusted accounts."""

    keys: frozenset[str]  # that may have signed an account
    system_account: str = ""


def operator(token: str, verify: Verify) -> Operator:
    """The keys in an operator's JWT."""
    claims = decode(token, "operator", verify)
    more = claims.body.get("signing_keys") or []
    strict = bool(claims.body.get("strict_signing_key_usage"))
    keys = {key for key in more if isinstance(key, str)} | (set() if strict else {claims.subject})
    if claims.issuer not in {claims.subject, *keys}:
        raise UsageError("the operator's JWT is not signed by the operator")
    return Operator(frozenset(keys), str(claims.body.get("system_account") or ""))


# Accounts.


@dataclass(frozen=True, slots=True)
class AccountClaims:
    """The claims of an account."""

    claims: Claims
    options: AccountOptions
    keys: Mapping[str, Mapping[str, Any] | None]  # that may sign users; with the role of those, if it is fixed
    revoked: Mapping[str, int]  # user (or `*`) -> users issued up to then, in seconds
    default: Permissions | None
    bearer: bool
    tags: tuple[str, ...] = ()

    def is_revoked(self, user: str, issued: int) -> bool:
        return any(issued <= self.revoked[key] for key in (user, "*") if key in self.revoked)


def account(token: str, verify: Verify) -> AccountClaims:
    """Decode an account's JWT; raises UsageError if it needs a feature that this server does not have."""
    claims = decode(token, "account", verify)
    body = claims.body
    if body.get("imports"):
        raise UsageError(f"account {claims.name or claims.subject!r} has imports, which are not supported")
    if body.get("mappings"):
        raise UsageError(f"account {claims.name or claims.subject!r} has mappings, which are not supported")
    limits = body.get("limits") or {}
    keys: dict[str, Mapping[str, Any] | None] = {claims.subject: None}
    for key in body.get("signing_keys") or []:
        if isinstance(key, str):
            keys[key] = None
        elif isinstance(key, dict) and key.get("kind") == "user_scope":
            keys[str(key.get("key"))] = key.get("template") or {}
        else:
            raise UsageError(f"account {claims.name or claims.subject!r} has a signing key of an unknown kind")
    options = AccountOptions(
        name=claims.subject,
        jetstream=_jetstream(limits),
        max_connections=_limit(limits, "conn", missing=0),
        max_subscriptions=_limit(limits, "subs", missing=0),
        max_payload=_limit(limits, "payload", missing=0),
    )
    revoked = {str(key): int(at) for key, at in (body.get("revocations") or {}).items()}
    return AccountClaims(
        claims, options, keys, revoked, permissions(body.get("default_permissions") or {}),
        bearer=not limits.get("disallow_bearer"), tags=tuple(body.get("tags") or ()),
    )  # fmt: skip


def _limit(limits: Mapping[str, Any], name: str, *, missing: int = NO_LIMIT) -> int:
    """A limit of 0 is often omitted from a token: a missing limit must not be read as unlimited."""
    value = limits.get(name, missing)
    return value if isinstance(value, int) and value >= 0 else NO_LIMIT


def _jetstream(limits: Mapping[str, Any]) -> AccountLimits | None:
    """None if the account has no storage. Of limits by tier those of one replica count: there is no other here."""
    tier = (limits.get("tiered_limits") or {}).get("R1", limits)
    if not tier.get("mem_storage") and not tier.get("disk_storage"):
        return None
    names = {
        "max_memory": "mem_storage", "max_storage": "disk_storage", "max_ack_pending": "max_ack_pending",
        "memory_max_stream_bytes": "mem_max_stream_bytes", "storage_max_stream_bytes": "disk_max_stream_bytes",
    }  # fmt: skip
    found = {ours: int(tier.get(theirs, 0)) for ours, theirs in names.items()}
    for name in ("max_ack_pending", "memory_max_stream_bytes", "storage_max_stream_bytes"):
        found[name] = found[name] or NO_LIMIT  # 0 is no limit for these, and no storage at all for the others
    return AccountLimits(
        max_streams=_limit(tier, "streams"),
        max_consumers=_limit(tier, "consumer"),
        max_bytes_required=bool(tier.get("max_bytes_required")),
        **found,
    )


# Users.


@dataclass(frozen=True, slots=True)
class UserClaims:
    """The claims of a user, with what its account adds."""

    claims: Claims
    permissions: Permissions | None
    max_subscriptions: int
    max_payload: int
    bearer: bool
    connection_types: tuple[str, ...]
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = field(default=())

    def may_come_from(self, address: str) -> bool:
        if not self.networks:
            return True
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self.networks)


def user(claims: Claims, account_claims: AccountClaims) -> UserClaims:
    """Decode what a user's JWT grants in its account; raises UsageError if the account did not sign it."""
    if claims.issuer not in account_claims.keys:
        raise UsageError("the user's JWT is not signed by a key of its account")
    body, scope = claims.body, account_claims.keys[claims.issuer]
    if scope is not None:
        body = {**body, **_scoped(scope, claims, account_claims)}
    if body.get("times"):
        raise UsageError("the user's JWT restricts the time of day, which is not supported")
    granted = permissions(body)
    sources = body.get("src") or []
    try:
        sources = sources.split(",") if isinstance(sources, str) else sources
        networks = tuple(ipaddress.ip_network(str(source).strip(), strict=False) for source in sources)
    except ValueError as exc:
        raise UsageError("the user's JWT contains an invalid network") from exc
    return UserClaims(
        claims,
        granted if granted is not None else account_claims.default,
        at_most(_limit(body, "subs", missing=0), account_claims.options.max_subscriptions),
        at_most(_limit(body, "payload", missing=0), account_claims.options.max_payload),
        bool(body.get("bearer_token")),
        _connection_types(body.get("allowed_connection_types") or []),
        networks,
    )


def _connection_types(names: list[str]) -> tuple[str, ...]:
    wanted = tuple(str(name).upper() for name in names)
    known = tuple(name for name in wanted if name in CONNECTION_TYPES)
    if wanted and not known:
        raise UsageError("the user's JWT permits only connection types that this server does not have")
    return known


def permissions(body: Mapping[str, Any]) -> Permissions | None:
    """The permissions of a JWT; None if it has none."""
    publish, subscribe, resp = body.get("pub") or {}, body.get("sub") or {}, body.get("resp")
    lists = [tuple(side.get(name) or ()) for side in (publish, subscribe) for name in ("allow", "deny")]
    if not any(lists) and not resp:
        return None
    responses = None
    if resp:
        max_msgs, expires = int(resp.get("max") or 1), int(resp.get("ttl") or 120 * SECOND)
        responses = Responses(
            max_msgs=max_msgs if max_msgs > 0 else None,
            expires=timedelta(microseconds=expires // 1000) if expires > 0 else None,
        )
    return Permissions(
        publish=lists[0] or None, publish_deny=lists[1], subscribe=lists[2] or None, subscribe_deny=lists[3],
        responses=responses,
    )  # fmt: skip


def _scoped(scope: Mapping[str, Any], claims: Claims, account_claims: AccountClaims) -> dict[str, Any]:
    """The role of a scoped signing key, with its templates filled in. The user's own JWT must not set permissions."""
    own = [claims.body.get(name) for name in _FIXED_BY_ROLE]
    own += [(claims.body.get(side) or {}).get(name) for side in ("pub", "sub") for name in ("allow", "deny")]
    if any(own):
        raise UsageError("the user's JWT must not have permissions: the scoped key that signed it defines them")
    filled: dict[str, Any] = {
        name: scope.get(name) for name in ("resp", "src", "times", "bearer_token", "allowed_connection_types")
    }
    filled |= {name: scope.get(name, NO_LIMIT) for name in ("subs", "payload")}
    for name in ("pub", "sub"):
        side = scope.get(name) or {}
        allow = [
            done for entry in side.get("allow") or [] for done in _filled(entry, claims, account_claims, strict=False)
        ]
        deny = [
            done for entry in side.get("deny") or [] for done in _filled(entry, claims, account_claims, strict=True)
        ]
        if side.get("allow") and not allow:  # a template without values must not permit everything
            deny.append(">")
        filled[name] = {"allow": allow, "deny": deny}
    return {name: value for name, value in filled.items() if value is not None}


def _filled(entry: str, claims: Claims, account_claims: AccountClaims, *, strict: bool) -> list[str]:
    words = _TEMPLATE.findall(entry)
    if not words:
        return [entry]
    choices = [_values(word.strip(), claims, account_claims) for word in words]
    total = 1
    for values in choices:
        total *= len(values)
    if total > MAX_EXPANSIONS:
        raise UsageError(f"a permission's template must expand to at most {MAX_EXPANSIONS} subjects, got {total}")
    found = []
    for chosen in itertools.product(*choices):
        values_left = iter(chosen)
        found.append(_TEMPLATE.sub(lambda _, left=values_left: next(left), entry))  # type: ignore[misc]
    good = [subject for subject in found if is_valid_filter(subject)]
    if strict and (len(good) < len(found) or not found):
        raise UsageError("the template of a denied subject must expand to at least one subject")
    return good


def _values(word: str, claims: Claims, account_claims: AccountClaims) -> list[str]:
    lower = word.lower()
    simple = {
        "name()": claims.name,
        "subject()": claims.subject,
        "account-name()": account_claims.claims.name,
        "account-subject()": account_claims.claims.subject,
    }
    if lower in simple:
        return [simple[lower]]
    for start, tags in (("tag(", claims.body.get("tags") or ()), ("account-tag(", account_claims.tags)):
        if lower.startswith(start) and lower.endswith(")"):
            prefix = f"{lower[len(start) : -1]}:"
            return [tag[len(prefix) :] for tag in tags if str(tag).lower().startswith(prefix)]
    raise UsageError(f"unknown template {word!r}")
