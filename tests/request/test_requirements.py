# SPDX-License-Identifier: Apache-2.0
"""CUDA_VERSION of old images: which texts are versions (toolkit `image/cuda_image.go`)."""

import pytest

from nri_nvidia import errors
from nri_nvidia.request import requirements


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", "12.0"),
        ("v12.4", "12.4"),
        ("012.04", "12.4"),
        ("12.4.18446744073709551615", "12.4"),
        ("11.6-rc1", "11.6"),
        ("11-rc", "11.0"),
        ("11.6.0-rc.1", "11.6"),
        ("11.6.0-rc.1+build.007", "11.6"),
        ("11.6.0+cudnn8", "11.6"),
        ("11.6.0--", "11.6"),
        ("11.6.0-0a", "11.6"),
        ("11.6.0-0", "11.6"),
    ],
)
def test_versions(text, expected):
    """Parts may be missing, zeros may lead, and what is behind the numbers does not count."""
    assert requirements.cuda_version(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", " 12", "12 ", "12\n", "V12", "vv12", "12.4-", "12.4+", "12.4.0-rc..1", "12.4.0-01",
     "12.4.0-rc.007", "12.4.0+a+b", "12.4.0-ä", "12.4.0_rc", "12.4.18446744073709551616",
     "4294967296", "12.4294967296", "12.4.1.7", "١٢", "0" * 257, "9" * 10000],
)  # fmt: skip
def test_no_versions(text):
    """All else is refused with its text, a long one cut."""
    with pytest.raises(errors.RequestError) as caught:
        requirements.cuda_version(text)
    assert caught.value.code == "invalid-cuda-version"
    assert len(caught.value.message) < 500
    assert "\n" not in caught.value.message
