# SPDX-License-Identifier: Apache-2.0
"""The file of settings that an installation writes."""

import re
import tomllib

import attrs

from nri_nvidia.config import access, example, load, model


def test_it_sets_nothing():
    """Read as it is, it gives the defaults."""
    assert load.load([load.Text(name="example", toml=example.text())]) == model.Config()


def test_every_key_and_group_is_explained():
    """The texts are those of the model's keys: a key more needs a sentence in config.example."""
    keys = {
        f"{group.name}.{field.name}"
        for group in attrs.fields(model.Config)
        if attrs.has(group.type)
        for field in attrs.fields(group.type)
    }
    assert set(example._KEYS) == keys
    assert set(example._RULE_KEYS) == {field.name for field in attrs.fields(access.Rule)}


def test_each_default_can_be_taken_in():
    """With the marks before all keys taken away it is valid, and gives the defaults still."""
    before, rules = example.text().split("# Rules over")
    whole = before + rules.partition("\n\n")[2]
    plain = re.sub(r"^#(?=[a-z_]+ = )", "", whole, flags=re.MULTILINE)
    assert load.load([load.Text(name="example", toml=plain)]) == model.Config()


def test_each_key_of_a_rule_can_be_taken_in():
    """The table of a rule, uncommented, is one that can be read, with every key in it."""
    rules = example.text().partition("# Rules over")[2].partition("\n\n")[0]
    table = "\n".join(
        line[1:] for line in rules.splitlines() if re.match(r"#(\[\[|[a-z_]+ = )", line)
    )
    rule = tomllib.loads(table)["policy_rules"][0]
    assert set(rule) == {field.name for field in attrs.fields(access.Rule)}
    load.load([load.Text(name="rules", toml=table)])


def test_lines_fit():
    """It is read in a terminal."""
    assert max(map(len, example.text().splitlines())) < 100
