# SPDX-License-Identifier: Apache-2.0
"""Bundles and directories that every user of the host can reach, as a node's are."""

import json
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from nri_nvidia.oci import install

from . import bundles, standing

RUNTIMES = ("runc", "runc-1.1.5", "crun")


@pytest.fixture(scope="session")
def shared():
    """A directory for what is made once."""
    folder = Path(tempfile.mkdtemp(prefix="hook-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def toolbox(shared):
    return bundles.Toolbox.make(shared)


BOTH_WAYS = ("attacks", "hook", "hook_process", "procfs", "races")
"""The modules whose tests have the hook done by a process that stands ready, too."""


def pytest_generate_tests(metafunc):
    """Have a hook started by Python, and done by what stands ready; --long: in every test.

    Those marked `alone` are about the process that is started.
    """
    name = metafunc.module.__name__.rpartition(".")[2].removeprefix("test_")
    both = name in BOTH_WAYS or metafunc.config.getoption("--long")
    alone = metafunc.definition.get_closest_marker("alone")
    if both and not alone and "hook" in metafunc.fixturenames:
        metafunc.parametrize("hook", ["python", "ready"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def python_hook(shared):
    """The command line that starts the installed hook as a Python of its own."""
    interpreter = install.interpreter()
    return [interpreter, "-I", "-S", install.install(str(shared / "hook"), interpreter)]


@pytest.fixture(scope="session")
def hook(request, shared, python_hook):
    """The command line that starts it, or has it done by a process that stands ready for it."""
    if getattr(request, "param", "python") == "python":
        yield python_hook
        return
    with standing.ready(python_hook, shared) as command:
        yield command


@pytest.fixture
def place():
    """A directory of one test."""
    folder = Path(tempfile.mkdtemp(prefix="hook-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=RUNTIMES)
def runtime(request):
    known = bundles.runtimes()
    if request.param not in known and request.param == "runc-1.1.5" and known:
        pytest.skip("this mirror's suites no longer offer runc 1.1.5")
    if request.param not in known:
        pytest.fail(f"{request.param} is not set up: run contrib/setup")
    return known[request.param]


class Case:
    """One root file system, and ways to have the hook work on it."""

    def __init__(self, place, hook, toolbox):
        self.place, self.hook, self.toolbox = place, hook, toolbox
        self.bundle = place / "bundle"
        self.root = self.bundle / "rootfs"
        self.driver = [bundles.bind(toolbox.driver, bundles.LIBRARY_DIR)]
        self.ready = []

    def standing(self, hook, folder):
        """Have another hook done as this one is: by what stands ready, if that does this one."""
        if self.hook[0] == hook[0]:
            return hook
        running = standing.start(hook, folder)
        self.ready.append(running)
        return standing.front(hook, running.folder)

    def make(self, kind):
        bundles.make_root(self.root, self.toolbox, kind)
        return self

    def command(self, *options):
        report = ["--report", str(self.place / "report"), "--token", "secret"]
        return [*self.hook, "--link", "nvidia-smi", *report, *options]

    def run(  # noqa: PLR0917
        self, runtime, args=("/bin/needs-driver",), mounts=None, options=(), change=None, prefix=()
    ):
        """Run a container with the hook; `change` may edit its configuration."""
        mounts = self.driver if mounts is None else mounts
        document = bundles.config("rootfs", list(args), mounts, self.command(*options))
        if change:
            change(document)
        with self.listen() as receive:
            return bundles.Result(
                *bundles.run(runtime, self.bundle, document, list(prefix)), receive()
            )

    def direct(self, *options, prefix=(), state=None, document=None):
        """Start the hook without a runtime, on a driver directory that is part of the root."""
        document = document or {"root": {"path": "rootfs"}}
        (self.bundle / "config.json").write_text(json.dumps(document))
        state = {"id": "direct", "bundle": str(self.bundle)} if state is None else state
        text = state if isinstance(state, str) else json.dumps(state)
        with self.listen() as receive:
            command = [*prefix, *self.command(*options)]
            done = bundles.start(command, text, self.root)
            return bundles.Result(*done, receive())

    def put_driver_in_root(self):
        shutil.copytree(self.toolbox.driver, self.root / bundles.LIBRARY_DIR.strip("/"))
        return self

    def listen(self):
        return Listener(self.place / "report")


class Listener:
    """A socket for the hook's report; gives a function that reads what came, or None."""

    def __init__(self, path):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self):
        self.socket.bind(str(self.path))
        self.path.chmod(0o722)  # who sends may be the root of a user namespace
        self.socket.setblocking(False)
        return self.receive

    def receive(self):
        try:
            return json.loads(self.socket.recv(1 << 20))
        except BlockingIOError:
            return None

    def __exit__(self, *_):
        self.socket.close()
        self.path.unlink()


@pytest.fixture
def case(place, hook, toolbox):
    made = Case(place, hook, toolbox)
    yield made
    for each in made.ready:
        standing.end(each)


@pytest.fixture
def ready(case):
    """A Debian image in which the driver lies, for the hook without a runtime."""
    return case.make("debian").put_driver_in_root()
