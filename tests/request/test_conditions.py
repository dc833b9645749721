# SPDX-License-Identifier: Apache-2.0
"""The language of requirements, beyond the recorded cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_nvidia import errors
from nri_nvidia.request import conditions, model

FACTS = conditions.Facts(
    cuda="12.4", driver="550.54.15", has_gpu=True, arch="8.9", brand="quadro_rtx"
)


def require(text):
    return model.Requirement(variable="NVIDIA_REQUIRE_CUDA", text=text)


def met(text, facts=FACTS):
    return conditions.evaluate(require(text), facts).met


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda>=12.4", True),
        ("cuda>12.4", False),
        ("cuda<12.10", True),
        ("cuda<=12.4.0", True),
        ("driver>=550,driver<551", True),
        ("driver=550.54..15.", True),
        ("cuda>=13 driver>=550", True),
        ("cuda>=13,driver>=550", False),
        ("brand=quadrortx", True),
        ("BRAND=QuadroRTX", True),
        ("brand=quadro", False),
        ("brand!=quadro", True),
        ("arch>=8.0,arch<9.0", True),
        ("", True),
        (" , ", True),
    ],
)
def test_terms(text, expected):
    """A space is an OR, a comma an AND; versions compare by numbers, brands without case."""
    assert met(text) is expected


@pytest.mark.parametrize("brand", ["vcs", "nvidiavcs", "NVIDIA_VCS"])
def test_brand_of_a_virtual_gpu(brand):
    """NVML's name of a vGPU's brand is understood with and without its first word."""
    facts = conditions.Facts(has_gpu=True, brand="nvidia_vcs")
    assert met(f"brand={brand}", facts)
    assert not met("brand=nvidia", facts)


def test_what_is_not_known_counts_as_met_and_is_told():
    """Without NVML a term holds; only those of the group that decided are named."""
    facts = conditions.Facts(driver="550.54.15", has_gpu=True)
    text = "cuda>=99,driver>=600 brand=tesla,driver>=550 arch>=1"
    verdict = conditions.evaluate(require(text), facts)
    assert (verdict.met, verdict.assumed) == (True, ("brand=tesla",))
    assert not met("cuda>=99,driver>=600", facts)


def test_malformed_term_is_refused_though_the_fact_is_not_known():
    """Whether a text can be read does not depend on what NVML says."""
    for text in ("cuda>=12.x", "brand>=tesla", "cuda=12,13=", "driver>.5", "\tcuda>=12"):
        with pytest.raises(errors.RequestError) as caught:
            met(text, conditions.Facts(has_gpu=True))
        assert caught.value.code == "invalid-requirement"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cuda>=12\t13", r"the term 'cuda>=12\t13' cannot be read: '12\t13' is not a version"),
        ("driver>=\x1b[2J", r"the term 'driver>=\x1b[2J' cannot be read: '\x1b[2J' is not"),
        ("bra\nnd=x", r"the term 'bra\nnd=x' cannot be read: the properties are"),
        ("cuda>=\xa012", r"'\xa012' is not a version"),
    ],
)
def test_a_malformed_term_is_shown_as_it_is_written(text, said):
    """What cannot be printed is escaped once; a long text is cut."""
    with pytest.raises(errors.RequestError) as caught:
        met(text)
    assert said in errors.printable(caught.value.message)
    with pytest.raises(errors.RequestError) as caught:
        met("cuda>=" + "1x" * 5000)
    assert len(caught.value.message) < 1000


def test_long_requirement_is_shown_by_its_first_group():
    """Images state dozens of alternatives; a message names the first and their number."""
    groups = ["cuda>=12.8", *(f"brand=tesla,driver>={n},driver<{n + 1}" for n in range(500, 520))]
    text = conditions.shown(require(" ".join(groups)))
    assert text == "NVIDIA_REQUIRE_CUDA: cuda>=12.8 (or one of 20 alternatives)"


TERMS = st.builds(
    lambda *parts: "".join(parts),
    st.sampled_from(["cuda", "driver", "arch", "brand", "Cuda", "foo", ""]),
    st.sampled_from(["=", "!=", "<", "<=", ">", ">=", "!", "==", "=>", ""]),
    st.text("0123456789.x", max_size=8) | st.sampled_from(["tesla", "quadrortx"]),
)
EXPRESSIONS = st.lists(TERMS | st.sampled_from([" ", ",", ", ", " ,"]), max_size=12).map("".join)


@given(EXPRESSIONS | st.text(), st.booleans(), st.booleans())
def test_any_text_is_decided_or_refused(text, known, has_gpu):
    """A requirement is met, not met, or refused with a sentence; nothing else happens."""
    facts = FACTS if known else conditions.Facts(has_gpu=has_gpu)
    try:
        verdict, refusal = conditions.evaluate(require(text), facts), None
    except errors.RequestError as error:
        verdict, refusal = conditions.Verdict(met=False), error
    assert refusal is None or "NVIDIA_REQUIRE_CUDA" in refusal.message
    assert not (known and verdict.assumed)


NUMBERS = st.lists(st.integers(0, 9999), min_size=1, max_size=4)


@given(NUMBERS, NUMBERS)
def test_versions_are_ordered_by_their_numbers(left, right):
    """Exactly one of <, = and > holds, as for lists of numbers without their last zeros."""
    facts = conditions.Facts(driver=".".join(map(str, left)))
    value = ".".join(map(str, right))
    first, second = ([*numbers, 0, 0, 0, 0][:4] for numbers in (left, right))
    expected = [first < second, first == second, first > second]
    assert [met(f"driver{sign}{value}", facts) for sign in "<=>"] == expected
    assert [not met(f"driver{sign}{value}", facts) for sign in (">=", "!=", "<=")] == expected
