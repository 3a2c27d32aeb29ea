"""Subject mappings: examples seen on nats-server 2.15.1, its errors, and properties that hold for every subject."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.wire import SubjectMapping, check_mapping, is_valid_subject, matches
from slipstream.wire.mapping import parse_token
from tests.growth import cpu, grows_less

WRONG = "invalid mapping destination: "
tokens = st.text(st.sampled_from("abc-é0"), min_size=1, max_size=7)
subjects = st.lists(tokens, min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize(
    ("source", "destination", "subject", "result"),
    [
        ("in.*.*", "out.{{wildcard(2)}}.{{wildcard(1)}}", "in.a.b", "out.b.a"),
        ("in.*.*", "out.$2.$1", "in.a.b", "out.b.a"),
        ("in.*.*", "out.{{ Wildcard( 2 ) }}.x", "in.a.b", "out.b.x"),
        ("in.*", "$KV.{{wildcard(1)}}", "in.a", "$KV.a"),
        ("in.>", "{{partition(7)}}.>", "in.a.b", "5.a.b"),
        ("in.*.*", "o.{{partition(7,1,2)}}", "in.a.b", "o.2"),
        ("in.*.*", "o.{{Partition(7, 2, 1)}}", "in.a.b", "o.6"),
        ("in.a", "o.{{partition(5)}}", "in.a", "o.4"),
        ("in.a", "o.{{partition(0)}}", "in.a", "o.0"),
        ("in.*.*", "o.{{SplitFromLeft(1,2)}}", "in.abcde.b", "o.ab.cde"),
        ("in.*.*", "o.{{SplitFromRight(1,2)}}", "in.abcde.b", "o.abc.de"),
        ("in.*.*", "o.{{splitFromRight(1,9)}}", "in.abcde.b", "o.abcde"),
        ("in.*.*", "o.{{splitfromleft(1,9)}}", "in.abcde.b", "o.abcde"),
        ("in.*.*", "o.{{SliceFromLeft(1,2)}}", "in.abcde.b", "o.ab.cd.e"),
        ("in.*.*", "o.{{SliceFromLeft(1,2)}}", "in.abcd.b", "o.ab.cd"),
        ("in.*.*", "o.{{SliceFromLeft(1,9)}}", "in.abcd.b", "o.abcd"),
        ("in.*.*", "o.{{SliceFromRight(1,2)}}", "in.abcde.b", "o.a.bc.de"),
        ("in.*.*", "o.{{SliceFromRight(1,2)}}", "in.abcd.b", "o.ab.cd"),
        ("in.*.*", "o.{{SliceFromRight(1,0)}}", "in.abcd.b", "o.abcd"),
        ("in.*.*", "o.{{left(1,2)}}", "in.abc.b", "o.ab"),
        ("in.*.*", "o.{{left(1,-2)}}", "in.abc.b", "o.abc"),
        ("in.*.*", "o.{{right(1,2)}}", "in.abc.b", "o.bc"),
        ("in.*.*", "o.{{right(1,3)}}", "in.abc.b", "o.abc"),
        ("in.*.*", "o.{{split(1,-)}}", "in.-ab--cd-e-.b", "o.ab.cd.e"),
        ("in.*.*", "o.{{split(1,)}}", "in.abc.b", "o.a.b.c"),
        ("in.*.*", "o.{{wildcard(0)}}", "in.abc.b", "o.in"),  # odd, and so on nats-server
        ("in.*.*", "o.{{random(0)}}", "in.abc.b", "o.0"),
        ("in.a", "o.{{random(1)}}", "in.a", "o.0"),
        ("in.*.*", "", "in.a.b", "in.a.b"),
        ("", "x.>", "in.a.b", "x.in.a.b"),
        ("", "", "in.a.b", "in.a.b"),
        (">", ">", "a.b", "a.b"),
        ("a", "b", "a", "b"),
        ("a", "b", "c", None),
        ("in.*", "o.$1", "in.a.b", None),
        ("in.>", "o.>", "in", None),
        (">", "o.>", "a..b", None),
    ],
)
def test_a_subject_is_mapped_as_nats_server_does(
    source: str, destination: str, subject: str, result: str | None
) -> None:
    assert check_mapping(source, destination).apply(subject) == result


@pytest.mark.parametrize(
    ("source", "destination", "text"),
    [
        ("in.*.*", "o.{{wildcard(3)}}", f"{WRONG}wildcard index out of range in {{{{wildcard(3)}}}}: [3]"),
        ("in.a", "o.$1", f"{WRONG}wildcard index out of range in $1"),
        ("in.*", "{{wildcard()}}", f"{WRONG}not enough arguments passed to the function in {{{{wildcard()}}}}"),
        ("in.*", "{{wildcard(1,2)}}", f"{WRONG}too many arguments passed to the function in {{{{wildcard(1,2)}}}}"),
        ("in.*", "{{split(1)}}", f"{WRONG}not enough arguments passed to the function in {{{{split(1)}}}}"),
        ("in.*", "{{random(1,2)}}", f"{WRONG}not enough arguments passed to the function in {{{{random(1,2)}}}}"),
        ("in.*", "{{left(1,2,3)}}", f"{WRONG}too many arguments passed to the function in {{{{left(1,2,3)}}}}"),
        ("in.*", "{{nope(x)}}", f"{WRONG}unknown function in {{{{nope(x)}}}}"),
        ("in.*", "{{splitfromLEFT(1,2)}}", f"{WRONG}unknown function in {{{{splitfromLEFT(1,2)}}}}"),
        ("in.*", "o..x", f"{WRONG}invalid transform"),
        ("in.*", "o. .x", f"{WRONG}invalid transform"),
        ("in.*", "o.>.x", f"{WRONG}invalid transform in x"),
        ("in.*", "o.>", "invalid subject"),
        ("in.>", "o.x", "invalid subject"),
        ("in.*", "*", "invalid subject"),
        ("in..*", "o", "invalid subject"),
        ("in..a", "", "invalid subject"),
    ],
)
def test_a_bad_mapping_is_refused_with_the_text_of_nats_server(source: str, destination: str, text: str) -> None:
    with pytest.raises(ValueError, match="invalid ") as caught:
        check_mapping(source, destination)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "call", ["wildcard(x)", "partition()", "partition(2147483648)", "left(1,2147483648)", "split(1,a b)", "left(1,é)"]
)
def test_an_argument_of_the_wrong_kind_is_refused(call: str) -> None:
    with pytest.raises(ValueError, match="function argument is invalid or in the wrong format"):
        SubjectMapping("in.*", f"o.{{{{{call}}}}}")


def test_an_unknown_function_is_refused_without_the_strict_check_too() -> None:
    with pytest.raises(ValueError, match="unknown function"):
        SubjectMapping("in.*", "{{nope(1)}}")


@given(
    subjects,
    st.sampled_from(["splitFromLeft", "splitFromRight", "sliceFromLeft", "sliceFromRight"]),
    st.integers(-2, 9),
)
def test_what_cuts_a_token_loses_nothing_and_gives_subjects(subject: str, function: str, size: int) -> None:
    first, _, rest = subject.partition(".")
    mapped = SubjectMapping("*.>" if rest else "*", f"{{{{{function}(1,{size})}}}}" + (".>" if rest else "")).apply(
        subject
    )
    assert mapped is not None
    assert is_valid_subject(mapped)
    assert mapped.replace(".", "") == subject.replace(".", "")
    assert mapped.endswith(rest)
    assert mapped.removesuffix(rest).replace(".", "") == first


@given(subjects, st.sampled_from(["split(1,-)", "left(1,2)", "right(1,2)", "random(3)", "partition(3,1)"]))
def test_every_result_is_a_subject(subject: str, call: str) -> None:
    mapped = SubjectMapping("*.>", f"o.{{{{{call}}}}}.>").apply(subject)
    assert (mapped is not None) == matches("*.>", subject)
    assert mapped is None or (is_valid_subject(mapped) and matches("o.>", mapped))


@given(subjects, st.integers(1, 50))
def test_a_partition_is_stable_and_below_the_number_of_partitions(subject: str, count: int) -> None:
    one, two = SubjectMapping(">", f"{{{{partition({count})}}}}.>"), SubjectMapping("", f"{{{{partition({count})}}}}.>")
    mapped = one.apply(subject)
    assert mapped is not None
    assert mapped == one.apply(subject) == two.apply(subject)
    assert 0 <= int(mapped.split(".")[0]) < count


@given(subjects)
def test_tokens_swapped_twice_are_as_they_were(subject: str) -> None:
    swap = SubjectMapping("*.*", "$2.$1")
    once = swap.apply(subject)
    assert (swap.apply(once) if once is not None else None) == (subject if subject.count(".") == 1 else None)


def test_random_spreads_one_subject_over_all_places_and_the_same_way_each_time() -> None:
    def places() -> list[str | None]:
        mapping = SubjectMapping("a", "{{random(4)}}")
        return [mapping.apply("a") for _ in range(100)]

    assert set(places()) == {"0", "1", "2", "3"}
    assert places() == places()


_WHOLE_CALL = re.compile(
    r"\{\{\s*(partition|wildcard|splitfromleft|splitfromright|slicefromleft|slicefromright|right|left|split|random)"
    r"\s*\((.*)\)\s*\}\}",
    re.IGNORECASE | re.ASCII,
)


@given(st.lists(st.sampled_from(("{{", "}}", "left", "random", "(", ")", "1", ",", " ", "\n", "x", "{{left(1,2)}}"))))
def test_calls_are_found_as_by_one_expression_for_all_of_it(parts: list[str]) -> None:
    token = "{{" + "".join(parts) + "}}"
    found = _WHOLE_CALL.search(token)
    try:
        function, arguments = parse_token(token)
    except ValueError as exc:
        unknown = "unknown function" in str(exc)
        assert unknown is (found is None)
    else:
        if found is None:
            assert (function, arguments) == ("", [])  # too short to be a call
        else:
            assert function == found[1].lower()
            assert len(arguments) == len(found[2].split(","))


@pytest.mark.parametrize("token", ["{{left(", "{{ left (", "{{left(1,2)", ")}", "{{left(\n", ") "])
def test_a_long_token_is_parsed_in_linear_time(token: str) -> None:
    def parse(count: int) -> float:
        text = "{{" + token * count + "}}"

        def rejected() -> None:
            with pytest.raises(ValueError, match="invalid mapping destination"):
                parse_token(text)

        return cpu(rejected)

    assert grows_less(parse, 2000, 8000, times=8)
