# SPDX-License-Identifier: Apache-2.0
"""What becomes of the hook's cache under a volume, on which a reason of the decision rests."""

import pytest

from . import bundles


@pytest.fixture
def volume(case):
    """Give the mounts of a container that has an empty directory of its own at /etc."""
    (case.place / "etc").mkdir()
    case.make("debian")
    return [*case.driver, bundles.bind(case.place / "etc", "/etc", ["rbind"])]


def test_a_volume_at_etc_hides_the_cache(case, runtime, volume):
    """The hook's step is done, the volume stays as it is, and the program finds no driver."""
    result = case.run(runtime, mounts=volume)
    assert result.step("ldcache")["ok"]
    assert set(bundles.LIBRARIES) < set(bundles.cached(case.root))
    assert list((case.place / "etc").iterdir()) == []
    assert (result.status, "cannot open shared object" in result.errors) == (127, True)


def test_the_search_path_that_the_reason_names_helps(case, runtime, volume):
    """It needs no cache."""

    def search(document):
        document["process"]["env"].append(f"LD_LIBRARY_PATH={bundles.LIBRARY_DIR}/lib64")

    result = case.run(runtime, mounts=volume, change=search)
    assert (result.status, result.errors) == (0, "")
