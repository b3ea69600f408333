"""The mutants that storms are tried with by hand (`python tests/chaos/mutants.py`): one whose text has gone tries nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import mutants
from mutants import ROOT, STORMS, Mutant, Storm

ALL = [(storm, mutant) for storm in STORMS for mutant in storm.mutants]


@pytest.mark.parametrize(("storm", "mutant"), ALL, ids=[f"{storm.name}-{mutant.name}" for storm, mutant in ALL])
def test_every_mutant_can_still_be_made(storm: Storm, mutant: Mutant):
    for old, new in mutant.changes:
        assert old != new and mutants.place_of(old, storm).exists()
    assert re.compile(mutant.says)


@pytest.mark.parametrize(("storm", "mutant"), ALL, ids=[f"{storm.name}-{mutant.name}" for storm, mutant in ALL])
def test_every_mutant_has_tests_that_are_to_see_it(storm: Storm, mutant: Mutant):
    tests = re.findall(r"^def (test_\w+)", (ROOT / storm.file).read_text(), re.MULTILINE)
    assert any(word in test for word in re.findall(r"\w+", mutant.tests) for test in tests)


def test_no_two_mutants_have_one_name():
    assert len({f"{storm.name}: {mutant.name}" for storm, mutant in ALL}) == len(ALL)
