# SPDX-License-Identifier: Apache-2.0
"""What is to change in containerd's configuration."""

import tomllib

import pytest

from nri_nvidia import errors
from nri_nvidia.check import containerd as known
from nri_nvidia.configure import containerd, template, transparent

from .trees import RUNTIME, Paper, options, settled

MAIN = "/etc/containerd/config.toml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
OLD = 'version = 2\n\n# mine\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "p"  # pause\n'
OFF = '\n[plugins."io.containerd.nri.v1.nri"]\n  disable = true # off\n'


def nri(text, name=known.NRI):
    """Give NRI's table of a text."""
    return tomllib.loads(text)["plugins"][name]


@pytest.mark.parametrize(
    ("files", "release"),
    [({MAIN: "version = 3\n"}, ""), ({MAIN: OLD}, "2.1.9"), ({}, "2.1.9"), ({MAIN: "version = 4\n"}, "2.3.0"),
     ({MAIN: OLD + OFF.replace("true", "false")}, "1.7.24")],
)  # fmt: skip
def test_nothing_to_do_where_it_is_on(files, release):
    """By default from 2.0 on, whatever the version of the file, or because the file says so."""
    found = containerd.propose(Paper(files), options(release=release))
    assert (found.needed, found.then) == ((), ())
    assert "nothing to do" in found.notes[-1]


@pytest.mark.parametrize("release", ["1.7.24", ""])
def test_1_7_gets_it_in_the_main_file(release):
    """Also where the version is not known and the file is of version 2: there it may be off."""
    found = containerd.propose(Paper({MAIN: OLD}), options(release=release))
    (change,) = found.needed
    assert change.after.startswith(OLD)
    assert nri(change.after) == {"disable": False}
    assert found.then == ("systemctl restart containerd",)
    settled(containerd.propose, Paper({MAIN: OLD}), options(release=release))


def test_a_file_is_made_where_there_is_none():
    """It says of which version it is."""
    after = settled(containerd.propose, Paper(), options(release="1.7.24"))
    assert tomllib.loads(after.files[MAIN])["version"] == 2


@pytest.mark.parametrize("release", ["1.7.24", "2.1.9"])
def test_the_deciding_line_is_changed(release):
    """Nothing else of the file."""
    after = settled(containerd.propose, Paper({MAIN: OLD + OFF}), options(release=release))
    assert after.files[MAIN] == (OLD + OFF).replace("true", "false")


def test_a_file_of_version_1():
    """Names the plugin by its short name."""
    text = '[plugins]\n  [plugins.cri]\n    sandbox_image = "p"\n'
    after = settled(containerd.propose, Paper({MAIN: text}), options(release="1.7.24"))
    assert nri(after.files[MAIN], "nri") == {"disable": False}


def test_connections_from_outside_are_allowed():
    """Else no daemon could connect."""
    text = "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable_connections = true\n"
    after = settled(containerd.propose, Paper({MAIN: text}), options(release="2.1.9"))
    assert after.files[MAIN] == text.replace("true", "false")


def test_an_import_that_decides_is_changed():
    """The main file is left alone."""
    drop_in = "/etc/containerd/conf.d/nri.toml"
    files = {MAIN: 'version = 2\nimports = ["conf.d/*.toml"]\n' + OFF, drop_in: OFF}
    after = settled(containerd.propose, Paper(files), options(release="1.7.24"))
    assert after.files == {**files, drop_in: OFF.replace("true", "false")}


@pytest.mark.parametrize("pattern", ["/etc/containerd/conf.d/*.toml", "conf.d/*.toml"])
def test_a_drop_in_where_such_are_imported(pattern):
    """Instead of a change to the user's file."""
    main = f'imports = ["{pattern}"]\n{OLD}'
    after = settled(containerd.propose, Paper({MAIN: main}), options(release="1.7.24"))
    own = after.files.pop("/etc/containerd/conf.d/50-nri-nvidia.toml")
    assert after.files == {MAIN: main}
    assert (tomllib.loads(own)["version"], nri(own)) == (2, {"disable": False})


def test_a_disabled_plugin_is_enabled():
    """The others in that list stay, also in an import."""
    more = "/etc/containerd/more.toml"
    files = {
        MAIN: 'version = 3\nimports = ["more.toml"]\ndisabled_plugins = ["io.containerd.nri.v1.nri"]\n',
        more: "disabled_plugins = ['a', 'io.containerd.nri.v1.nri']\n",
    }
    after = settled(containerd.propose, Paper(files), options(release="2.1.9"))
    assert tomllib.loads(after.files[MAIN])["disabled_plugins"] == []
    assert tomllib.loads(after.files[more])["disabled_plugins"] == ["a"]


def test_required_where_there_is_a_validator():
    """Beside those that are required already."""
    text = (
        "version = 3\n[plugins.'io.containerd.nri.v1.nri'.default_validator]\n"
        "  required_plugins = ['other'] # ours\n"
    )
    given = options(release="2.2.1", require=True)
    after = settled(containerd.propose, Paper({MAIN: text}), given)
    assert nri(after.files[MAIN])["default_validator"] == {
        "enable": True, "required_plugins": ["other", "nri-nvidia"],
    }  # fmt: skip
    new = settled(containerd.propose, Paper(), given)
    assert nri(new.files[MAIN])["default_validator"]["required_plugins"] == ["nri-nvidia"]


@pytest.mark.parametrize("value", ["3", "'x'"])
def test_a_list_of_required_plugins_that_is_none(value):
    """containerd would not start with it; ours is a list again."""
    table = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\nrequired_plugins = "
    given = options(release="2.2.1", require=True)
    after = settled(containerd.propose, Paper({MAIN: f"version = 3\n{table}{value}\n"}), given)
    assert nri(after.files[MAIN])["default_validator"]["required_plugins"] == ["nri-nvidia"]


@pytest.mark.parametrize("release", ["1.7.24", "2.1.9", ""])
def test_required_is_refused_elsewhere(release):
    """A key that the engine does not know would be a promise that nobody keeps."""
    with pytest.raises(errors.ConfigError, match=r"2\.2 and later"):
        containerd.propose(Paper({MAIN: "version = 3\n"}), options(release=release, require=True))


@pytest.mark.parametrize(
    "files", [{MAIN: "version = 2\n[plugins\n"}, {MAIN: 'imports = ["gone.toml"]\n'},
              {MAIN: 'version = 2\nimports = ["a.toml"]\n', "/etc/containerd/a.toml": "x ="}],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(files):
    """Whichever of the files it is."""
    with pytest.raises(errors.ConfigError, match=r"config\.toml|gone\.toml|a\.toml"):
        containerd.propose(Paper(files), options(release="1.7.24"))


def test_a_table_where_containerd_does_not_look_is_told():
    """It is left, since it does nothing."""
    text = OLD + "\n[plugins.io.containerd.nri.v1.nri]\n  disable = false\n"
    found = containerd.propose(Paper({MAIN: text}), options(release="1.7.24"))
    assert "does not read" in found.notes[0]
    assert nri(found.needed[0].after) == {"disable": False}


@pytest.mark.parametrize("word", ["--config", "-config", "--config=", "-c"])
def test_a_containerd_with_a_file_of_its_own(word):
    """A change in the usual file would have no effect."""
    unit = "/lib/systemd/system/containerd.service"
    tree = Paper({unit: f"[Service]\nExecStart=/usr/bin/containerd {word} /etc/own.toml\n"})
    with pytest.raises(errors.ConfigError, match=r"started with --config /etc/own\.toml"):
        containerd.propose(tree, options(release="1.7.24"))
    settled(containerd.propose, tree, options(release="1.7.24", config="/etc/own.toml"))
    tree = Paper({unit: f"[Service]\nExecStart=/usr/bin/containerd {word} {MAIN}\n"})
    settled(containerd.propose, tree, options(release="1.7.24"))


class TestRancher:
    """k3s and RKE2 write config.toml anew at each start."""

    def test_a_template_is_made(self):
        """It includes the base one; which name it has depends on the containerd."""
        after = settled(containerd.propose, Paper({f"{K3S}/config.toml": OLD}), options())
        text = after.files[f"{K3S}/config.toml.tmpl"]
        assert text.startswith(template.BASE)
        assert nri(text.removeprefix(template.BASE)) == {"disable": False}
        off = "version = 3\n[plugins.'io.containerd.nri.v1.nri']\n  disable = true\n"
        found = containerd.propose(Paper({f"{K3S}/config.toml": off}), options())
        assert [change.path for change in found.needed] == [f"{K3S}/config-v3.toml.tmpl"]
        assert "k3s" in found.then[0]

    def test_the_generated_file_is_never_changed(self):
        """Although NRI's table is in it: it is from the template."""
        tmpl = template.BASE + OFF
        files = {f"{K3S}/config.toml": OLD + OFF, f"{K3S}/config.toml.tmpl": tmpl}
        found = containerd.propose(Paper(files), options())
        assert {change.path: change.after for change in found.needed} == {
            f"{K3S}/config.toml.tmpl": tmpl.replace("true", "false")
        }

    def test_a_drop_in_where_the_generated_file_imports_such(self):
        """Then no template is needed."""
        main = f'imports = ["{K3S}/config.toml.d/*.toml"]\n{OLD}'
        after = settled(containerd.propose, Paper({f"{K3S}/config.toml": main}), options())
        assert f"{K3S}/config.toml.d/50-nri-nvidia.toml" in after.files

    @pytest.mark.parametrize(
        ("text", "after"),
        [
            ("{{ x }}\n", '{{ x }}\n\n[plugins."io.containerd.nri.v1.nri"]\n  disable = false\n'),
            (OFF, OFF.replace("true", "false")),
            ("[plugins.'io.containerd.nri.v1.nri']\n  socket_path = '/x'\n[grpc]\n  disable = true\n",
             "[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n  socket_path = '/x'\n[grpc]\n  disable = true\n"),
            ("[plugins.'io.containerd.nri.v1.nri']",
             "[plugins.'io.containerd.nri.v1.nri']\n  disable = false\n"),
        ],
    )  # fmt: skip
    def test_a_template_is_changed_by_lines(self, text, after):
        """A second time nothing changes."""
        assert template.enable("f", text) == after
        assert template.enable("f", after) == after

    @pytest.mark.parametrize(
        "text",
        ["disabled_plugins = ['io.containerd.nri.v1.nri']\n",
         "\n[plugins.'io.containerd.nri.v1.nri']\n  disable = {{ .Off }}\n"],
    )  # fmt: skip
    def test_what_an_action_decides_is_refused(self, text):
        """With its line."""
        with pytest.raises(errors.ConfigError, match=r"f:\d:"):
            template.enable("f", text)

    @pytest.mark.parametrize(
        "text",
        [
            "plugins.'io.containerd.nri.v1.nri'.disable = true\n",
            "[plugins]\n'io.containerd.nri.v1.nri' = {disable = true}\n",
            "{{ a }}\n[plugins]\n'io.containerd.nri.v1.nri'.disable = true\n",
            "disabled_plugins = [\n  'io.containerd.nri.v1.nri',\n]\n",
            'x = """' + OFF + '"""\n',
            "a = {{ b }}\na = 1\nplugins.'io.containerd.nri.v1.nri'.disable = true\n",
        ],
    )
    def test_a_template_of_another_form_is_refused(self, text):
        """A table besides would be one that containerd does not start with."""
        with pytest.raises(
            errors.ConfigError, match=r"cannot be changed safely|among disabled_pl"
        ):
            template.enable("f", template.BASE + text)

    @pytest.mark.parametrize(
        ("text", "after"),
        [
            (OFF.replace("[plugins", '["plugins"'), None),
            (OFF.replace("disable", '"disable"'), None),
            (OFF + "  disable_connections = true\n", None),
            (OFF.replace("\n", "\r\n"), None),
            ("{{ x }}\r\n",
             '{{ x }}\r\n\r\n[plugins."io.containerd.nri.v1.nri"]\r\n  disable = false\r\n'),
            ('[plugins."io.containerd.nri.v1.nri"]\r\n',
             '[plugins."io.containerd.nri.v1.nri"]\r\n  disable = false\r\n'),
            ("{{ if a }}\nb = 1\n{{ else }}\nb = 2\n{{ end }}\n" + OFF, None),
            ("# disabled_plugins = ['io.containerd.nri.v1.nri']\n" + OFF, None),
            ('{{- /* of two\nlines */ -}}\nc = "{{ .C }}"\nd = {{ .D }}\n' + OFF, None),
        ],
    )  # fmt: skip
    def test_forms_of_a_template(self, text, after):
        """Only what switches it off is changed, and line ends are the file's."""
        wanted = after or text.replace("true", "false")
        assert template.enable("f", text) == wanted
        assert template.enable("f", wanted) == wanted

    def test_transparent_is_refused(self):
        """k3s puts its own runc first on its containerd's PATH."""
        with pytest.raises(errors.ConfigError, match="k3s starts its containerd itself"):
            containerd.propose(Paper({f"{K3S}/config.toml": OLD}), options(transparent=True))


class TestTransparent:
    """Our runtime as what shims find as runc."""

    UNIT = "/lib/systemd/system/containerd.service"
    DROP_IN = "/etc/systemd/system/containerd.service.d/50-nri-nvidia.conf"

    def test_a_link_and_a_drop_in(self):
        """Beside NRI; a restart needs systemd to read its units again."""
        tree = Paper({MAIN: "version = 3\n", self.UNIT: "[Service]\n"})
        found = containerd.propose(tree, options(transparent=True))
        assert found.then == ("systemctl daemon-reload", "systemctl restart containerd")
        after = settled(containerd.propose, tree, options(transparent=True))
        assert after.link(f"{transparent.DIRECTORY}/containerd/runc") == RUNTIME
        assert (
            f'"PATH={transparent.DIRECTORY}/containerd:/usr/local/sbin:'
            in after.files[self.DROP_IN]
        )

    def test_the_units_own_path_is_kept(self):
        """The last drop-in by name wins, as with systemd."""
        tree = Paper({
            self.UNIT: "[Service]\nEnvironment=PATH=/a:/b X=1\n",
            "/etc/systemd/system/containerd.service.d/40-own.conf": '[Service]\nEnvironment="A=b c" "PATH=/c:/d"\n',
            "/usr/lib/systemd/system/containerd.service.d/10-x.conf": "[Service]\nEnvironment=PATH=/e\n",
        })  # fmt: skip
        after = settled(containerd.propose, tree, options(release="2.1.9", transparent=True))
        assert f"PATH={transparent.DIRECTORY}/containerd:/c:/d" in after.files[self.DROP_IN]

    @pytest.mark.parametrize(
        ("unit", "path"),
        [
            ("Environment=A=1 \\\n  PATH=/a:/b\n", "/a:/b"),
            ("Environment=PATH=/a\nEnvironment=\n", "/usr/local/sbin:"),
            ("Environment=PATH=/a\nEnvironment=\nEnvironment=PATH=/b B=1\n", '/b"'),
            ("#Environment=PATH=/a\n; Environment=PATH=/b\n", "/usr/local/sbin:"),
        ],
    )
    def test_forms_of_a_units_path(self, unit, path):
        """As systemd reads them: lines that go on, an empty one that takes all back, comments."""
        tree = Paper({self.UNIT: f"[Service]\n{unit}"})
        after = settled(transparent.propose, tree, options())
        assert f"PATH={transparent.DIRECTORY}/containerd:{path}" in after.files[self.DROP_IN]

    def test_a_drop_in_of_all_services(self):
        """It counts for this one too; that of the unit itself by the same name is in its place."""
        every = "/etc/systemd/system/service.d/10-all.conf"
        tree = Paper({self.UNIT: "[Service]\n", every: "[Service]\nEnvironment=PATH=/every\n"})
        after = settled(transparent.propose, tree, options())
        assert "containerd:/every" in after.files[self.DROP_IN]
        own = "/lib/systemd/system/containerd.service.d/10-all.conf"
        tree = Paper({**tree.files, own: "[Service]\nEnvironment=PATH=/own\n"})
        after = settled(transparent.propose, tree, options())
        assert "containerd:/own" in after.files[self.DROP_IN]

    def test_a_later_drop_in_that_sets_path(self):
        """It would win over ours: it is told, also once ours is there."""
        late = "/etc/systemd/system/containerd.service.d/90-own.conf"
        tree = Paper({self.UNIT: "[Service]\n", late: "[Service]\nEnvironment=PATH=/c\n"})
        with pytest.raises(
            errors.ConfigError, match=r"90-own\.conf: sets PATH, and is read after"
        ):
            transparent.propose(tree, options())
        tree = Paper({self.UNIT: "[Service]\n", late: "[Service]\nEnvironment=A=/c\n"})
        settled(transparent.propose, tree, options())

    def test_a_file_of_variables_that_wins_is_told(self):
        """systemd lets EnvironmentFile win over Environment, in drop-ins too."""
        unit = "[Service]\nEnvironmentFile=-/etc/default/containerd\n"
        tree = Paper({self.UNIT: unit, "/etc/default/containerd": "PATH=/a:/b\n"})
        with pytest.raises(errors.ConfigError, match="PATH is set in /etc/default/containerd"):
            transparent.propose(tree, options())
        glob = unit.replace("default/containerd", "default/cont*")
        with pytest.raises(errors.ConfigError, match="PATH is set in /etc/default/containerd"):
            transparent.propose(Paper({**tree.files, self.UNIT: glob}), options())
        tree = Paper({self.UNIT: unit, "/etc/default/containerd": "XPATH=/a\n"})
        settled(transparent.propose, tree, options())

    def test_a_unit_that_is_not_there_is_told(self):
        """Then systemd does not start this containerd."""
        found = transparent.propose(Paper(), options(unit="other.service"))
        assert "other.service" in found.notes[0]
        with pytest.raises(errors.ConfigError, match="--unit"):
            transparent.propose(Paper(), options(unit="../x.service"))
