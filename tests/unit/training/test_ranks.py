"""What a launcher's environment says about the ranks of a run."""

from mtx.training.ranks import World, this_world

RANKS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_the_environment_of_a_launcher() -> None:
    assert this_world(RANKS) == World(3, 4, 1, 2)
    assert this_world(RANKS).name.startswith("rank 3 on ")
