# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of CUDA forward compatibility against the hook's decision."""

from nri_nvidia.edits import options
from nri_nvidia.oci import compat, hook
from tests.cases import test_cases as recorded


@recorded.of("cuda-compat")
def test_cuda_compat(name, tmp_path):
    """A directory of the image is used or left as the toolkit's hook has it."""
    given, expected = recorded.NOW[name]["input"], recorded.NOW[name]["expected"]
    if "use" in expected:
        host = given.get("host_driver_version") or f"cuda={given['host_cuda_version']}"
        why = compat.why_not(given["compat_version"], host, given["elf_note"])
        assert (not why) is expected["use"]
        return
    for path, text in given["container_files"].items():
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_text(text)
    usual = options.InjectOptions().cuda_compat_dir
    folder = given["options"].get("cuda_compat_container_root", usual)
    host = given["options"]["host_driver_version"]
    version, _ = compat.pick(f"{tmp_path}{folder}", host, hook.parse_object)
    assert (folder if version else None) == expected["compat_dir"]
