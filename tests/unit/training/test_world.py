"""What a launcher's environment says about the ranks of a run."""

import pytest

from mtx.errors import UsageError
from mtx.training.world import World, this_world

RANKS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_the_environment_of_a_launcher() -> None:
    assert this_world(RANKS) == World(3, 4, 1, 2)
    assert this_world(RANKS).name.startswith("rank 3 on ")


@pytest.mark.parametrize("environment", [{}, {"RANK": "0"}, {"WORLD_SIZE": "4"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_one_process_alone(environment: dict[str, str]) -> None:
    assert this_world(environment) == World()


@pytest.mark.parametrize(
    "change", [{"RANK": "4"}, {"LOCAL_RANK": "2"}, {"LOCAL_WORLD_SIZE": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": ""}]
)
def test_what_is_impossible_is_refused(change: dict[str, str]) -> None:
    ((name, value),) = change.items()
    with pytest.raises(UsageError, match=f"{name}={value}.*: expected numbers that belong together"):
        this_world({**RANKS, **change})
