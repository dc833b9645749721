# SPDX-License-Identifier: Apache-2.0
"""Containers of real pods that share the GPUs of another one of the pod."""

from .test_policy import VISIBLE, codes, given, gpu_host, gpus, settled

__all__ = ["gpu_host", "settled"]

SHARING = {"nri-nvidia/share.sidecar": "main", "nri-nvidia/share.init": "main"}
ONE = {VISIBLE: "1"}
EXCLUSIVE = "policy.exclusive = true\n"


async def test_a_sidecar_uses_the_gpu_of_the_main_container(engine, settled):
    """It may open that node and no other's, also where its image names every GPU."""
    engine.add_image("exporter", base="debian", env=[f"{VISIBLE}=all"])
    with settled(EXCLUSIVE) as daemon:
        async with engine.pod(annotations=SHARING) as pod, engine.pod() as other:
            said = await given(pod, "exporter", name="init")
            assert "container main of this pod holds no GPU now for init to share" in said
            assert codes(daemon)[-1] == "nothing-to-share"
            async with pod.container("debian", name="main", env=ONE) as main:
                assert gpus(main) == [1]
                async with pod.container("exporter", name="sidecar") as sidecar:
                    assert gpus(sidecar) == [1]
                    assert codes(daemon) == ["environment-passed-over", "gpus-shared"]
                    listed = await sidecar.exec(["/bin/sh", "-c", "ls /dev | grep nvidia"])
                    assert "nvidia1" in listed.stdout
                    assert "nvidia0" not in listed.stdout
                assert "is held by default/" in await given(other, env=ONE)
            said = await given(pod, "exporter", name="sidecar")
            assert "it has not been created yet, has ended, or was given none" in said
            assert await given(other, env=ONE) == [1]


STRICT = """policy = "strict"
[[policy_rules]]
namespaces = ["ml"]
sources = ["share"]
action = "allow"
[[policy_rules]]
namespaces = ["never"]
devices = ["share"]
action = "deny"
[[policy_rules]]
devices = ["index"]
action = "allow"
"""


async def test_a_node_shares_by_namespace(engine, settled):
    """Strict ignores it but where a rule allows it; another rule refuses it."""
    with settled(STRICT) as daemon:
        for namespace, outcome, code in (
            ("default", [], "strict-policy"),
            ("ml", [1], "gpus-shared"),
            ("never", "denied by policy_rules[2]", "denied-by-rule"),
        ):
            async with (
                engine.pod(namespace=namespace, annotations=SHARING) as pod,
                pod.container("debian", name="main", env=ONE),
            ):
                found = await given(pod, name="sidecar")
                assert found == outcome or outcome in found
                assert codes(daemon)[-1] == code
