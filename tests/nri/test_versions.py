# SPDX-License-Identifier: Apache-2.0
"""Which runtimes show to plugins what all of them together change."""

import pytest

from nri_nvidia.nri import versions


@pytest.mark.parametrize(
    ("name", "version", "nri", "expected"),
    [
        ("containerd", "1.7.24~ds1", "", False),
        ("containerd", "2.1.9+unknown", "", False),
        ("containerd", "2.2.0-rc.1", "", False),
        ("containerd", "2.2.0~beta2", "", False),
        ("containerd", "2.2.0", "", True),
        ("containerd", "2.2.0~ds1-2", "", True),
        ("containerd", "v2.2.1-k3s1", "", True),
        ("containerd", "2.3.0-rc.1", "", True),
        ("containerd", "10.0.0", "", True),
        ("containerd", "2.1.9", "v0.12.0", True),
        ("containerd", "2.2.0", "0.9.0", False),
        ("containerd", "", "", False),
        ("containerd", "unknown", "unknown", False),
        ("cri-o", "1.33.4", "", False),
        ("cri-o", "1.34.0", "", True),
        ("cri-o", "1.34.0-dev", "", False),
        ("other", "9.9.9", "", False),
    ],
)
def test_who_validates(name, version, nri, expected):
    """NRI's own version decides where it is told, else the runtime's; in doubt it is not asked."""
    assert versions.can_validate(name, version, nri) is expected
