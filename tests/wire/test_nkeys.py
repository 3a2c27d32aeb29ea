"""Seeds and public keys as text: what we write is what nats-server and its tools write, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.errors import CredentialsError
from slipstream.wire.nkeys import KeyPair, Kind, _encode, decode_public, encode_public, public_key, verify

RAW = st.binary(min_size=32, max_size=32)
KINDS = st.sampled_from(Kind)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
LETTERS = {Kind.ACCOUNT: "A", Kind.CLUSTER: "C", Kind.SERVER: "N", Kind.OPERATOR: "O", Kind.USER: "U"}
# A pair from the documentation of NATS.
SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"


def test_a_known_seed_gives_its_known_public_key() -> None:
    pair = KeyPair.from_seed(SEED)
    assert (pair.kind, pair.public_key, pair.seed) == (Kind.USER, PUBLIC, SEED)


@given(KINDS, RAW, st.binary(max_size=100))
def test_seeds_and_keys_survive_the_way_through_text(kind: Kind, raw: bytes, data: bytes) -> None:
    pair = KeyPair(kind, raw)
    assert pair.seed[0] == "S"
    assert pair.seed[1] == pair.public_key[0] == LETTERS[kind]
    again = KeyPair.from_seed(pair.seed)
    assert (again.kind, again.public_key) == (kind, pair.public_key)
    assert encode_public(*decode_public(pair.public_key)) == pair.public_key
    key, signature = public_key(pair.public_key, kind), again.sign(data)
    assert verify(key, signature, data)
    assert not verify(key, signature, data + b"!")
    assert pair.seed not in repr(pair)


@given(RAW, st.integers(0, 57), st.sampled_from(ALPHABET + ALPHABET.lower() + "018=é \n"))
def test_one_wrong_letter_is_noticed_and_not_repeated(raw: bytes, at: int, letter: str) -> None:
    seed = KeyPair(Kind.USER, raw).seed
    wrong = seed[:at] + letter + seed[at + 1 :]
    if wrong == seed:
        return
    with pytest.raises(CredentialsError, match="nkey seed must") as caught:
        KeyPair.from_seed(wrong)
    assert raw.hex() not in str(caught.value)
    assert wrong[2:-2] not in str(caught.value)


@given(st.text(alphabet=ALPHABET, max_size=80))
def test_any_other_text_is_refused(text: str) -> None:
    for read in (KeyPair.from_seed, decode_public):
        with pytest.raises(CredentialsError, match=r"an nkey .* must"):
            read(text)


def test_keys_of_the_wrong_kind_are_rejected() -> None:
    pair = KeyPair(Kind.USER, bytes(32))
    with pytest.raises(CredentialsError, match="must begin with S"):
        KeyPair.from_seed(pair.public_key)
    with pytest.raises(CredentialsError, match="32 bytes, got 33"):
        decode_public(pair.seed)
    curve = "SXAMWQXRUVW4QGM6HSOTAGC5ZJUHL4LZTE6XHWNDZBWYPE63SZPCVRMZ7Q"  # for encryption: it cannot sign
    with pytest.raises(CredentialsError):
        KeyPair.from_seed(curve)
    for letter in "PX":  # private keys, keys for encryption
        with pytest.raises(CredentialsError, match="one of ACCOUNT"):
            decode_public(_encode(bytes((ord(letter) - ord("A") << 3,)) + bytes(32)))
    with pytest.raises(CredentialsError, match="got 31"):
        KeyPair(Kind.USER, bytes(31))
