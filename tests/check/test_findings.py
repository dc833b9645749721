# SPDX-License-Identifier: Apache-2.0
"""A fault for each finding, made as it occurs on a node, which must come first."""

import json
import os
import pathlib

import pytest

from nri_nvidia import cli

from . import nodes

HOSTS = pathlib.Path(__file__).parents[1] / "hosts"
NRI_OFF = 'version = 2\n[plugins."io.containerd.nri.v1.nri"]\n  disable = true\n'


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    return nodes.Node(tmp_path_factory.mktemp("healthy") / "node")


@pytest.fixture
def node(tmp_path, healthy):
    return healthy.copied(tmp_path / "node")


def config(text):
    return lambda node: node.write("etc/containerd/config.toml", text)


def versions(**told):
    return lambda node: node.write("versions.json", json.dumps(told))


def replace(old, new):
    def do(node):
        path = node.path("etc/containerd/config.toml")
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return do


def remove(name):
    return lambda node: node.path(name).unlink()


def write(name, text):
    return lambda node: node.write(name, text)


def both(*faults):
    def do(node):
        for fault in faults:
            fault(node)

    return do


def second_daemon(node):
    node.process(200, "/usr/bin/python3", "-m", "nri_nvidia", "run")


def launched(node):
    node.path("opt/nri/plugins").mkdir(parents=True)
    node.path("opt/nri/plugins/10-nri-nvidia").symlink_to("/opt/nri-nvidia/bin/nri-nvidia")


def wrong_link(node):
    node.path("dev/char/195:1").unlink()
    node.path("dev/char/195:1").symlink_to("../other")


def shadow(node):
    node.container(300, "550.163.01", environment=("LD_LIBRARY_PATH=/opt/drv:/lib",))
    node.write("proc/300/root/opt/drv/libcuda.so.1", "")


def kernel_module_version(version):
    return write("sys/module/nvidia/version", f"{version}\n")


def module_gone(node):
    for path in sorted(node.path("sys/module/nvidia").rglob("*"), reverse=True):
        path.unlink() if not path.is_dir() else path.rmdir()
    node.path("sys/module/nvidia").rmdir()
    for name in ("proc/driver/nvidia/version",):
        if node.path(name).exists():
            node.path(name).unlink()


def no_uvm(node):
    path = node.path("proc/devices")
    lines = [line for line in path.read_text().splitlines() if "nvidia-uvm" not in line]
    path.write_text("\n".join(lines) + "\n")
    nodes_file = node.path("dev.nodes")
    kept = [line for line in nodes_file.read_text().splitlines() if "uvm" not in line]
    nodes_file.write_text("\n".join(kept) + "\n")


def node_gone(node):
    path = node.path("dev.nodes")
    path.write_text(
        "".join(line for line in path.read_text().splitlines(True) if "nvidia1" not in line)
    )
    node.write("settings.toml", "[host]\ncreate_device_nodes = false\n")


def nvml(change):
    """Change what NVML says."""

    def do(node):
        path = node.path("nvml.json")
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return do


def swapped(document):
    first, second = document["gpus"]
    first["index"], second["index"] = second["index"], first["index"]


def silent(document):
    document["gpus"] = document["gpus"][:1]
    document["errors"] = ["GPU 1: Unknown Error"]


def libraries(node, name="lib*.so*"):
    """Give the driver's libraries in the tree."""
    return [path for path in node.path("usr/lib").rglob(name) if not path.is_dir()]


def no_libraries(node):
    for path in libraries(node):
        path.unlink()


def without(name):
    """Take a library away, under all of its names."""

    def do(node):
        found = libraries(node, f"{name}.so*")
        assert found
        for path in found:
            path.unlink()

    return do


def damaged(node):
    for path in libraries(node, "libcuda.so.*"):
        if not path.is_symlink():
            path.write_bytes(b"")


def second_copy(node):
    for path in libraries(node, "libnvidia-ml.so.550*"):
        copy = path.with_name("libnvidia-ml.so.535.54.03")
        copy.write_bytes(path.read_bytes())


OLD_RUNC = {"containerd": "2.1.9", "runc": "1.1.5+ds1", "systemd": "252"}
KUBELET = write("var/lib/kubelet/config.yaml", "")
NVIDIA_RUNTIME = """
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
"""

FAULTS = {
    "nri-off": (config(NRI_OFF), "error"),
    "nri-off, by default of 1.7": (both(config("version = 2\n"), versions(containerd="1.7.24~ds1")), "error"),
    "nri-off, as a disabled plugin": (
        config('version = 4\ndisabled_plugins = ["io.containerd.nri.v1.nri"]\n'), "error",
    ),
    "nri-off, by an import": (
        both(
            config('version = 3\nimports = ["conf.d/*.toml"]\n'),
            write("etc/containerd/conf.d/a.toml", NRI_OFF.replace("= 2", "= 3")),
        ),
        "error",
    ),
    "nri-off, in k3s": (
        both(remove("etc/containerd/config.toml"), write(
            "var/lib/rancher/k3s/agent/etc/containerd/config.toml", NRI_OFF)), "error",
    ),
    "nri-settings-misplaced": (
        config("version = 2\n[plugins.io.containerd.nri.v1.nri]\n  disable = false\n"), "error",
    ),
    "nri-connections-off": (replace("disable = false", "disable = false\n  disable_connections = true"), "error"),
    "nri-socket-differs": (replace("disable = false", 'socket_path = "/run/other.sock"'), "error"),
    "nri-socket-missing": (remove("run/nri/nri.sock"), "error"),
    "nri-socket-refused": (write("proc/net/unix", nodes.LISTENS.replace("00010000", "00000000")), "error"),
    "runtime-not-running": (both(remove("proc/100/cmdline"), remove("run/nri/nri.sock")), "error"),
    "runtime-too-old": (versions(containerd="1.6.20"), "error"),
    "request-timeout-short": (replace("disable = false", 'plugin_request_timeout = "200ms"'), "warning"),
    "containerd-config-unreadable": (config("version = \n"), "error"),
    "default-runtime-nvidia": (
        both(replace('name = "runc"', 'name = "nvidia"'), lambda node: node.write(
            "etc/containerd/config.toml",
            node.path("etc/containerd/config.toml").read_text() + NVIDIA_RUNTIME)),
        "error",
    ),
    "nvidia-runtime-class": (config(nodes.CONFIG + NVIDIA_RUNTIME), "info"),
    "settings-wrong": (write("settings.toml", "[host]\nrot = 1\n"), "error"),
    "two-daemons": (second_daemon, "error"),
    "two-daemons, at the runtime's next start": (launched, "error"),
    "ldconfig-missing": (remove("usr/sbin/ldconfig"), "warning"),
    "driver-not-loaded": (module_gone, "error"),
    "driver-version-mismatch": (both(kernel_module_version("570.10.01"), remove("nvml.json")), "error"),
    "driver-libraries-missing": (no_libraries, "error"),
    "driver-incomplete": (without("libcuda"), "error"),
    "driver-library-missing": (without("libnvidia-ml"), "warning"),
    "driver-library-missing, which another needs": (without("libnvidia-glcore"), "warning"),
    "nvml-version-mismatch": (nvml(lambda told: told.update(driver_version="535.54.03")), "warning"),
    "driver-library-damaged": (damaged, "error"),
    "driver-second-copy": (second_copy, "warning"),
    "gpu-order-mismatch": (nvml(swapped), "warning"),
    "gpu-not-answering": (nvml(silent), "warning"),
    "kernel-module-not-loaded": (no_uvm, "error"),
    "device-node-missing": (node_gone, "error"),
    "dev-char-link-missing": (both(remove("dev/char/195:0"), versions(**OLD_RUNC)), "error"),
    "dev-char-link-missing, runc not known": (
        both(remove("dev/char/195:0"), versions(containerd="2.1.9")), "warning",
    ),
    "dev-char-link-wrong": (wrong_link, "warning"),
    "fabric-manager-missing": (write("proc/driver/nvidia-nvswitch/devices/0", ""), "error"),
    "persistence-off": (remove("proc/102/cmdline"), "info"),
    "stale-driver": (lambda node: node.container(300, "535.161.07"), "error"),
    "library-path-shadows-driver": (shadow, "error"),
    "other-nri-plugin": (write("opt/nri/plugins/10-nvidia-toolkit", ""), "warning"),
    "other-nri-plugin, in a directory of its own": (
        both(
            replace("disable = false", 'plugin_path = "/opt/plugins"'),
            write("opt/plugins/10-nvidia-toolkit", ""),
        ),
        "warning",
    ),
    "other-hook": (
        write("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", '{"path": "nvidia"}'), "warning",
    ),
    "cdi-spec-stale": (
        write("etc/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n  - hostPath: /usr/lib/libcuda.so.1.0\n"),
        "warning",
    ),
    "cdi-spec-present": (write("run/cdi/n.json", '{"kind": "nvidia.com/gpu"}'), "info"),
    "docker-default-nvidia": (write("etc/docker/daemon.json", '{"default-runtime": "nvidia"}'), "info"),
    "selinux-denies-devices": (write("sys/fs/selinux/enforce", "1"), "warning"),
    "apparmor-confines": (write("proc/101/attr/current", "nri-nvidia (enforce)\n"), "warning"),
    "every-pod-can-take-all-gpus": (KUBELET, "warning"),
}  # fmt: skip


def test_node_without_fault(node, capsys):
    """Nothing is found, and the exit status is 0; a text says so."""
    assert node.findings(capsys) == (0, [])
    given = ["check", "--host", str(node.top), "--config", str(node.path("settings.toml"))]
    assert cli.main(given) == 0
    assert capsys.readouterr().out == "nothing is wrong\n"


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_first(node, capsys, name):
    """Its code comes first and no other beside it, with a severity, a sentence and a command."""
    fault, severity = FAULTS[name]
    fault(node)
    status, found = node.findings(capsys)
    first = found[0]
    assert (first["code"], first["severity"]) == (name.partition(",")[0], severity), found
    assert {finding["code"] for finding in found} == {first["code"]}
    assert status == (1 if severity == "error" else 0)
    assert first["message"]
    assert "\n" not in first["message"] + first["command"]
    assert first["command"]


def test_no_runtime_that_could_be_started(node, capsys):
    """Where nothing of containerd is there, it is to be installed, or not to be looked for."""
    both(remove("proc/100/cmdline"), remove("run/nri/nri.sock"))(node)
    assert node.findings(capsys)[1][0]["command"] == "systemctl start containerd"
    both(remove("etc/containerd/config.toml"), versions(runc="1.3.0"))(node)
    found = node.findings(capsys)[1][0]
    assert (found["code"], found["command"]) == (
        "runtime-not-running", "apt-get install containerd",
    )  # fmt: skip
    assert "nri.enabled = false" in found["message"]


@pytest.mark.parametrize("name", ["runtime-not-running", "nri-off", "nri-socket-missing"])
def test_no_runtime_is_looked_for_where_nri_is_not_wanted(node, capsys, name):
    """Containers are to come by other doors alone (`nri.enabled`)."""
    FAULTS[name][0](node)
    with node.path("settings.toml").open("a") as settings:
        settings.write("\n[nri]\nenabled = false\n")
    assert node.findings(capsys) == (0, [])


def test_nothing_is_written(node, capsys):
    """A look changes neither the node nor its times."""

    def state():
        return {
            path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in node.top.rglob("*")
        }

    node.findings(capsys)
    before = state()
    node.findings(capsys)
    assert state() == before


def test_mig_nodes_that_are_missing(tmp_path, capsys):
    """A MIG device whose capability the kernel does not list is named."""
    from nri_nvidia.testing import host_spec

    mig = host_spec.GpuSpec(mig_enabled=True, mig=(host_spec.MigSpec(gi=1),))
    node = nodes.Node(tmp_path / "node", gpus=(mig,))
    assert node.findings(capsys) == (0, [])
    node.path("proc/driver/nvidia-caps/mig-minors").write_text("")
    for path in node.path("proc/driver/nvidia/capabilities").rglob("access"):
        path.unlink()
    status, found = node.findings(capsys)
    assert (status, found[0]["code"]) == (1, "mig-capability-missing")


def test_node_without_a_gpu(tmp_path, capsys):
    """It is worth a word and no error."""
    node = nodes.Node(tmp_path / "node", gpus=(), driver="", hardware=False, nvml=False)
    status, found = node.findings(capsys)
    assert (status, [finding["code"] for finding in found]) == (0, ["no-gpu"])


def test_snippet_is_of_the_files_version(node, capsys):
    """What to write is shown as TOML that switches NRI on, in the version of the file."""
    for version in (2, 3, 4):
        node.write("etc/containerd/config.toml", NRI_OFF.replace("= 2", f"= {version}"))
        _, found = node.findings(capsys)
        node.write("etc/containerd/config.toml", f"version = {version}\n{found[0]['detail']}\n")
        assert node.findings(capsys) == (0, [])


@pytest.mark.parametrize(
    "name", ["nri-off", "nri-off, by default of 1.7", "nri-off, by an import"]
)
def test_command_switches_nri_on(node, capsys, name):
    """What is to be run makes the finding go away."""
    FAULTS[name][0](node)
    _, found = node.findings(capsys)
    command = found[0]["command"].partition(" && ")[0].split()
    assert command[:3] == ["nri-nvidia", "configure", "containerd"]
    version = ["--root", str(node.top), "--engine-version", "1.7.24"]
    assert cli.main([*command[1:3], *version, *command[3:]]) == 0
    capsys.readouterr()
    assert node.findings(capsys) == (0, [])


def test_command_for_a_containerd_of_k3s(node, capsys):
    """k3s writes its containerd's file anew at each start: its own service is restarted."""
    FAULTS["nri-off, in k3s"][0](node)
    _, found = node.findings(capsys)
    expected = "nri-nvidia configure containerd --apply && systemctl restart k3s"
    assert found[0]["command"] == expected


@pytest.mark.parametrize(
    "settings",
    [
        'policy = "strict"\n',
        "[request]\naccept_env_when_unprivileged = false\n",
        '[[policy_rules]]\ndevices = ["all"]\naction = "deny"\n',
    ],
)
def test_node_on_which_not_every_pod_can_take_all_gpus(node, capsys, settings):
    """Each way to close it is known, since the decision itself is asked."""
    KUBELET(node)
    node.write("settings.toml", settings)
    assert node.findings(capsys) == (0, [])


def test_older_form_of_configuration_of_a_newer_containerd(node, capsys):
    """Where containerd's version is not known and somebody listens, NRI is on."""
    node.write("versions.json", "{}")
    node.write("etc/containerd/config.toml", "version = 2\n")
    assert node.findings(capsys) == (0, [])


def test_names_steer_no_terminal(node, capsys):
    """What is on a node may hold escape sequences; they are shown, not obeyed."""
    node.write("opt/nri/plugins/10-nvidia-\x1b[31m", "")
    given = ["check", "--host", str(node.top), "--config", os.devnull]
    assert cli.main(given) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(path.name for path in HOSTS.iterdir()))
def test_host_of_which_only_the_driver_is_recorded(capsys, name):
    """Nothing is claimed of what a recording does not hold: runtimes, programs, daemons."""
    cli.main(["check", "--host", str(HOSTS / name), "--config", os.devnull, "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    known = {
        "no-gpu", "driver-not-loaded", "driver-version-mismatch", "gpu-order-mismatch",
        "device-node-missing", "gpu-not-answering", "driver-second-copy",
    }  # fmt: skip
    assert {finding["code"] for finding in found} <= known


def test_configuration_that_is_named_and_not_there(node, capsys):
    """What was asked for is never passed over in silence."""
    given = ["check", "--host", str(node.top), "--containerd-config", "/etc/none.toml"]
    assert cli.main(given) == 2
    said = capsys.readouterr().err
    assert "--containerd-config /etc/none.toml: no such file" in said
    assert "/etc/containerd/config.toml" in said


def test_wrong_settings_are_named_in_the_command(node, capsys):
    """The command judges the file that was read."""
    FAULTS["settings-wrong"][0](node)
    _, found = node.findings(capsys)
    assert found[0]["command"] == f"nri-nvidia config --check {node.path('settings.toml')}"
