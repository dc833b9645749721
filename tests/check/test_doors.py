# SPDX-License-Identifier: Apache-2.0
"""What who runs docker, podman or CDI is told to do is a command of that engine."""

import pytest

from nri_nvidia.check import gather, model, node
from nri_nvidia.config import model as config
from nri_nvidia.host import root as roots

from . import nodes


@pytest.fixture
def place(tmp_path):
    """A node on which nothing is wrong."""
    return nodes.Node(tmp_path / "node")


@pytest.mark.parametrize(
    ("group", "command"),
    [
        (f"9:devices:/docker/{nodes.ID}", "docker restart"),
        (f"0::/system.slice/docker-{nodes.ID}.scope", "docker restart"),
        (f"0::/machine.slice/libpod-{nodes.ID}.scope/container", "podman rm -f"),
        (f"9:devices:/libpod_parent/libpod-{nodes.ID}", "podman rm -f"),
        (f"0::/kubepods/cri-containerd-{nodes.ID}.scope", "crictl rm -f"),
        (f"9:devices:/k8s.io/{nodes.ID}", "crictl rm -f"),
    ],
)
def test_a_container_is_made_anew_by_its_engine(place, capsys, group, command):
    """Whose it is tells its cgroup; docker gives one that is restarted the new driver."""
    place.container(300, "535.161.07")
    place.write("proc/300/cgroup", f"{group}\n")
    (found,) = place.findings(capsys)[1]
    assert (found["code"], found["command"]) == ("stale-driver", f"{command} {nodes.ID[:12]}")


STALE = '{"kind": "nvidia.com/gpu", "hostPath": "/usr/lib/libcuda.so.1.0"}'


@pytest.mark.parametrize(
    ("path", "settings", "command"),
    [
        ("etc/cdi/nvidia.yaml", "", "rm /etc/cdi/nvidia.yaml"),
        (
            "etc/cdi/nri-nvidia-gpu.json",
            "",
            "nri-nvidia cdi generate --kind gpu --output /etc/cdi",
        ),
        ("run/cdi/nri-nvidia-gpu.json", "cdi.keep = true", "systemctl restart nri-nvidia"),
        (
            "run/cdi/nri-nvidia-gds.json",
            "",
            "nri-nvidia cdi generate --kind gds --output /var/run/cdi",
        ),
    ],
)
def test_a_stale_specification_of_ours_is_written_again(place, capsys, path, settings, command):
    """Containers that name its devices fail without it as well; another's is not ours to write."""
    place.write(path, STALE)
    place.write("settings.toml", settings)
    (found,) = place.findings(capsys)[1]
    assert (found["code"], found["command"]) == ("cdi-spec-stale", command)


def test_two_specifications_of_one_kind(place, capsys):
    """The one that is not ours is to go; in two directories they are no rivals."""
    text = '{"kind": "nvidia.com/gpu"}'
    place.write("run/cdi/nvidia.json", text)
    place.write("etc/cdi/nri-nvidia-gpu.json", text)
    assert {found["code"] for found in place.findings(capsys)[1]} == {"cdi-spec-present"}
    place.write("etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
    first = place.findings(capsys)[1][0]
    assert (first["code"], first["command"]) == ("cdi-spec-twice", "rm /etc/cdi/nvidia.yaml")
    assert "/etc/cdi/nri-nvidia-gpu.json" in first["message"]


def test_a_specification_whose_hook_is_gone(tmp_path):
    """It is below /run: after a reboot containers fail until the daemon has started once."""
    hook = tmp_path / "run/nri-nvidia/hook/nri-nvidia-hook"
    path = tmp_path / "etc/cdi/nri-nvidia-gpu.json"
    path.parent.mkdir(parents=True)
    named = '"args": ["python3", "-I", "/run/nri-nvidia/hook/nri-nvidia-hook"]'
    path.write_text(f'{{"kind": "nvidia.com/gpu", {named}}}')

    def codes():
        found = gather.gather(gather.Where(root=roots.Root(str(tmp_path)))).others
        return {each.code for each in node.others(model.Facts(others=found))}

    assert codes() == {"cdi-hook-missing"}
    path.with_name("nri-nvidia-gds.json").write_text(f'{{"kind": "nvidia.com/gds", {named}}}')
    found = gather.gather(gather.Where(root=roots.Root(str(tmp_path)))).others
    commands = [each.command for each in node.others(model.Facts(others=found))]
    assert "nri-nvidia cdi generate --kind gds --output /etc/cdi" in commands
    hook.parent.mkdir(parents=True)
    hook.touch()
    assert codes() == {"cdi-spec-present"}


def test_a_fault_of_the_settings_comes_first_and_the_others_count(place, capsys):
    """Else NRI would be asked for where it is switched off, and containerd restarted for it."""
    place.path("run/nri/nri.sock").unlink()
    place.write("settings.toml", "[nri]\nenabled = false\n[log]\nleval = 'debug'\n")
    assert [found["code"] for found in place.findings(capsys)[1]] == ["settings-wrong"]
    place.write("settings.toml", "[nri]\nenabled = off\n")
    assert place.findings(capsys)[1][0]["code"] == "settings-wrong"


@pytest.mark.parametrize("kubelet", [False, True])
def test_a_node_of_docker_alone_needs_no_nri(place, capsys, kubelet):
    """It is told so where NRI is off, and a node of Kubernetes is not."""
    place.write("etc/containerd/config.toml", nodes.CONFIG.replace("= false", "= true"))
    if kubelet:
        place.write("var/lib/kubelet/config.yaml", "")
    first = place.findings(capsys)[1][0]
    assert first["code"] == "nri-off"
    assert ("nri.enabled = false" in first["message"]) != kubelet


@pytest.mark.parametrize("enabled", [True, False])
def test_what_becomes_of_containers_without_the_daemon(enabled):
    """Those of nri-nvidia-runtime are refused; only those of NRI run without their GPUs."""
    settings = config.Config(nri=config.Nri(enabled=enabled))
    facts = model.Facts(uid=0, status_error="x", settings=settings, ldconfig="/sbin/ldconfig")
    (found,) = node.daemon(facts)
    assert ("created without their GPUs" in found.message) == enabled
    assert "refused" in found.message
