# SPDX-License-Identifier: Apache-2.0
"""The cache that the hook makes of an image's own: what the real ldconfig would have made."""

import struct
import subprocess
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from nri_nvidia.oci import cache
from nri_nvidia.testing import stubs

from . import bundles, linking

NAMES = (
    "libcuda.so.1", "libnvidia-ml.so.1", "libGLX_nvidia.so.0", "liba.so.1", "liba.so.2",
    "liba.so.10", "liba.so", "libb-1.2.so.0", "libb-1.10.so.0", "libB.so.9", "liba1.so",
)  # fmt: skip
PLACES = (linking.OWN, "/usr/lib", "/opt/one", "/opt/two", "/usr/local/cuda/compat")
HWCAPS = ("", "", "", "/glibc-hwcaps/x86-64-v2", "/glibc-hwcaps/x86-64-v3")
FOLDERS_OF_CONF = ("/opt/one", "/opt/two", "/opt/two/", "/opt/none", linking.OWN, linking.LIB64)


@st.composite
def of_the_image(draw):
    """A library somewhere in an image; those of 32 bits are by themselves."""
    if draw(st.integers(0, 4)) == 0:
        return linking.Library(soname=draw(st.sampled_from(NAMES)), folder="/opt/lib32", bits=32)
    soname = draw(st.sampled_from(NAMES))
    return linking.Library(
        soname=soname,
        folder=draw(st.sampled_from(PLACES)) + draw(st.sampled_from(HWCAPS)),
        file=draw(st.sampled_from(("", f"{soname}.0.1", f"{soname}.12"))),
        linked=draw(st.booleans()),
    )


@st.composite
def of_the_driver(draw):
    """A library of the driver's; its file has its name, or one that a link leads to."""
    bits = draw(st.sampled_from((64, 64, 64, 32)))
    return linking.Library(
        soname=draw(st.sampled_from(NAMES)),
        folder=linking.LIB64 if bits == 64 else linking.LIB32,
        bits=bits,
    )


@st.composite
def confs(draw):
    """Drop-ins, before and behind the hook's own."""
    lines = draw(st.lists(st.sampled_from(FOLDERS_OF_CONF), unique=True, max_size=5))
    found = {"zz": "".join(f"{line}\n" for line in lines) + "# none\n\n/opt/lib32  # 32 bits\n"}
    if draw(st.booleans()):
        found["00-compat"] = "/usr/local/cuda/compat\n"
    return found


@pytest.fixture(scope="module")
def programs(shared):
    found = {"this machine's": linking.HOSTS, "a newer one": linking.newer_ldconfig(shared)}
    assert found["a newer one"], "the images are not set up: run contrib/setup"
    return found


@pytest.mark.parametrize("host", ["this machine's", "a newer one"])
@pytest.mark.parametrize("image", ["this machine's", "a newer one"])
@hypothesis.settings(max_examples=25)
@hypothesis.given(
    image_has=st.lists(of_the_image(), max_size=25),
    driver=st.lists(of_the_driver(), min_size=1, max_size=8),
    drop_ins=confs(),
    links=st.sets(st.sampled_from(("libcuda.so", "libGLX_indirect.so.0"))),
    form=st.sampled_from(("new", "new", "compat")),
)
def test_it_is_the_one_of_ldconfig(  # noqa: PLR0917
    shared, programs, host, image, image_has, driver, drop_ins, links, form
):
    """Whatever the image and the driver have, the lists are the same, in the same order."""
    root = shared / "rootfs"
    linking.make(root, [*image_has, *driver], drop_ins)
    # An image's cache knows nothing of a driver.
    (root / bundles.LIBRARY_DIR[1:]).rename(root / "later")
    linking.ldconfig(root, programs[image], form)
    (root / "later").rename(root / bundles.LIBRARY_DIR[1:])
    for name in links:
        target = "libcuda.so.1" if name == "libcuda.so" else "libGLX_nvidia.so.0"
        if (root / linking.LIB64[1:] / target).exists():
            (root / linking.LIB64[1:] / name).symlink_to(target)
    made = root / "etc/ld.so.cache"
    original = made.read_bytes()
    linking.by_ldconfig(root, programs[host])
    expected = linking.listed(made)
    made.write_bytes(original)
    linking.by_hand(root)
    assert linking.listed(made) == expected
    linking.by_hand(root)  # its own cache is one to go by too
    assert linking.listed(made) == expected


CACHE = stubs.library_cache(
    [(name, f"{place}/{name}", bits) for name in NAMES for place, bits in zip(PLACES, (64, 64, 32), strict=False)]
)  # fmt: skip


def with_hwcaps(folder: Path) -> bytes:
    """Give a real cache that has all of what there can be."""
    libraries = [
        linking.Library(soname=name, folder=place + more)
        for name in NAMES[:3]
        for place in PLACES[:2]
        for more in HWCAPS[2:]
    ]
    linking.make(folder, libraries, {})
    linking.ldconfig(folder)
    return (folder / "etc/ld.so.cache").read_bytes()


@pytest.fixture(scope="module")
def real(shared):
    return with_hwcaps(shared / "real")


ORDER = {place.encode(): number for number, place in enumerate((linking.LIB64, *PLACES))}


def extended(data: bytes) -> bytes | None:
    """Extend a cache, as long as it is understood."""
    try:
        old = cache.parse_cache(data)
        new = [cache.Entry(name.encode(), linking.LIB64.encode(), 0x303) for name in NAMES[:2]]
        return cache.merge(old, new, ORDER)
    except cache.Unclear:
        return None


def test_a_real_cache_is_understood(real):
    """What ldconfig makes, with libraries for some processors only, is read as it is."""
    assert extended(real)
    assert {each.special for each in cache.parse_cache(real).entries} == {True, False}


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    changes=st.lists(
        st.tuples(st.integers(0, 1 << 16), st.one_of(st.integers(0, 255).map(lambda b: bytes([b])), st.binary(min_size=4, max_size=4))),
        min_size=1, max_size=6,
    ),
    cut=st.integers(0, 3000),
)  # fmt: skip
def test_hostile_caches(shared, real, changes, cut):
    """A cache with wrong bytes is refused, or what comes of it is one that ldconfig reads."""
    data = bytearray(real)
    for number, new in changes:
        place = number % len(data)
        data[place : place + len(new)] = new
    if cut < len(data):
        del data[len(data) - cut :]
    made = extended(bytes(data))
    if made is not None:
        path = shared / "hostile.cache"
        path.write_bytes(made)
        command = ["/sbin/ldconfig", "-p", "-C", str(path)]
        done = subprocess.run(command, check=False, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert extended(made) is not None


@hypothesis.given(st.binary(max_size=200))
def test_any_bytes(data):
    """Bytes behind either magic never raise anything but Unclear."""
    for magic in (b"", cache.MAGIC, cache.OLD_MAGIC):
        extended(magic + data)


def header(count: int, length: int, flags: int = 2, extension: int = 0) -> bytes:
    return cache.MAGIC + struct.pack("<7I", count, length, flags, extension, 0, 0, 0)


def row(name: int, path: int, flags: int = 0x303, hwcap: int = 0) -> bytes:
    return struct.pack("<IIIIQ", flags, name, path, 0, hwcap)


ENDLESS = b"/" + b"a" * 5000 + b"\0"
REFUSED = {
    "empty": b"",
    "too many rows": header(1 << 20, 0) + bytes(24 << 20),
    "all rows a word can say": header(0xFFFFFFFF, 0xFFFFFFFF),
    "all old rows a word can say": b"ld.so-1.7.0\0\xff\xff\xff\xff" + CACHE,
    "a big-endian machine's": header(0, 1, 3) + b"\0",
    "no end of the last string": header(1, 4) + row(72, 72) + b"/lib",
    "an offset into the rows": header(1, 5) + row(0, 72) + b"/lib\0",
    "an offset behind the strings": header(1, 5) + row(72, 1 << 31) + b"/lib\0",
    "a string without end": header(1, len(ENDLESS)) + row(72, 72) + ENDLESS,
    "letters that are not ASCII": header(1, 9) + row(75, 72) + "/o/é.so".encode() + b"\0",
    "a path that is not of its name": header(1, 12) + row(80, 72) + b"/o/a.so\0b/c\0",
    "a relative path": header(1, 7) + row(74, 72) + b"o/a.so\0",
    "bits of a processor": header(1, 8) + row(75, 72, hwcap=1 << 5) + b"/o/a.so\0",
    "a directory of glibc-hwcaps that is not listed":
        header(1, 8) + row(75, 72, hwcap=1 << 62) + b"/o/a.so\0",
    "flags of no kind": header(1, 8) + row(75, 72, flags=0x10303) + b"/o/a.so\0",
    "sections elsewhere": header(1, 8, extension=1 << 31) + row(75, 72) + b"/o/a.so\0",
    "sections that are none": header(1, 8, extension=72) + row(75, 72) + b"/o/a.so\0",
    "many sections": header(1, 16, extension=80) + row(75, 72) + b"/o/a.so\0"
        + struct.pack("<II", cache.EXTENSION, 1 << 30),
    "an unknown section": header(1, 8, extension=80) + row(75, 72) + b"/o/a.so\0"
        + struct.pack("<6I", cache.EXTENSION, 1, 7, 0, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(data):
    """Nothing is guessed: a cache that is wrong in one place is none."""
    with pytest.raises(cache.Unclear):
        cache.parse_cache(data)


def test_an_old_cache_is_understood():
    """Without sections, and with no byte order said, as before glibc 2.33."""
    data = header(1, 8, 0) + row(75, 72) + b"/o/a.so\0"
    (entry,) = cache.parse_cache(data).entries
    assert (entry.name, entry.folder, entry.flags) == (b"a.so", b"/o", 0x303)


def test_a_folder_that_is_searched_no_more():
    """A cache that lists a folder which the configuration does not is of no use."""
    old = cache.parse_cache(header(1, 8) + row(75, 72) + b"/o/a.so\0")
    with pytest.raises(cache.Unclear, match=r"^/o is not searched any more$"):
        cache.merge(old, [], ORDER)


def test_folders_in_another_order():
    """A cache in which the later folder's library comes first is of no use."""
    strings = b"/o/a.so\0/p/a.so\0"
    old = cache.parse_cache(header(2, 16) + row(99, 96) + row(107, 104) + strings)
    assert cache.merge(old, [], {b"/o": 0, b"/p": 1})
    with pytest.raises(cache.Unclear, match=r"^the order of folders is another one$"):
        cache.merge(old, [], {b"/o": 1, b"/p": 0})


def test_numbers_that_glibc_cannot_hold():
    """A name with a number beyond C's int would be sorted by what is undefined."""
    with pytest.raises(cache.Unclear):
        cache.rank(b"liba.so.2147483648")
    assert cache.rank(b"liba.so.2147483647") > cache.rank(b"liba.so.a")
