"""Each kept sample of an epoch is taken once, however often the job is stopped and on however many ranks it goes on."""

import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError
from iotwin.workloads.state.position import after, begin, go_on, next_epoch, order_digest, positions_of, steps_done, steps_left

EXAMPLES = int(os.environ.get("POSITION_EXAMPLES", "200"))  # tests/perf asks for 10 000


def step_of(position):
    """The places that all ranks take in the next step."""
    return [list(positions_of(position, rank)) for rank in range(position.world_size)]


@settings(max_examples=EXAMPLES)
@given(
    st.integers(1, 200),
    st.integers(1, 8),
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 10), st.integers(1, 8), st.integers(1, 6)), max_size=5),
)
def test_each_kept_sample_once_through_any_chain_of_stops(samples, batch, world, chain):
    """`chain`: after so many steps the job stops and goes on with another batch size and number of ranks."""
    position = begin(7, 3, samples, batch, world)
    kept, taken = samples // (batch * world) * batch * world, []
    assert position.kept == kept
    for steps, new_batch, new_world in [*chain, (10**6, batch, world)]:
        begun = False
        for _ in range(min(steps, steps_left(position))):
            each = step_of(position)
            sizes = [len(found) for found in each]
            assert max(sizes) <= position.batch_size and max(sizes) - min(sizes) <= 1
            together = sorted(place for found in each for place in found)
            later = after(position)
            assert together == list(range(position.position, later.position)) and together
            taken += together
            position, begun = later, True
        assert len(msgspec.json.encode(position)) <= 1000
        if position.position or begun:
            position = go_on(position, samples, new_batch, new_world)
    assert taken == list(range(kept)) and steps_left(position) == 0
    following = next_epoch(position)
    assert (following.epoch, following.position, following.seed) == (4, 0, 7)
    assert following.kept == samples - samples % (position.batch_size * position.world_size)


@given(st.integers(1, 100), st.integers(1, 5), st.integers(1, 5))
def test_ranks_take_what_torchs_sampler_and_loader_give_them(samples, batch, world):
    position = begin(1, 1, samples, batch, world)
    per_rank = samples // world  # DistributedSampler with drop_last
    for rank in range(world):
        own = list(range(per_rank * world))[rank::world]
        theirs = [own[first : first + batch] for first in range(0, per_rank // batch * batch, batch)]
        assert [list(positions_of(position, rank, step)) for step in range(steps_left(position))] == theirs
    for step in range(steps_left(position)):
        assert steps_done(after(position, step)) == step
        assert [list(positions_of(after(position, step), rank)) for rank in range(world)] == [
            list(positions_of(position, rank, step)) for rank in range(world)
        ]


def test_an_epoch_that_has_not_begun_is_of_the_ranks_that_begin_it():
    position = go_on(begin(1, 2, 17, 4, 2), 17, 3, 1)
    assert (position.kept, position.epoch, position.batch_size, position.world_size) == (15, 2, 3, 1)


@given(st.lists(st.integers(0, 1000), max_size=20), st.data())
def test_the_order_is_told_the_same_in_steps_of_any_size(indices, data):
    whole, cut = order_digest("", indices), 0
    digest = ""
    while cut < len(indices):
        size = data.draw(st.integers(1, 5))
        digest = order_digest(digest, indices[cut : cut + size])
        cut += size
    assert digest == whole
    if len(set(indices)) > 1:
        assert order_digest("", sorted(indices)) != order_digest("", sorted(indices, reverse=True))


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (Position(1, 1, 8, 20, 2, 2, 20), "is of 20 training samples, the data set has 16"),
        (Position(1, 1, 17, 16, 2, 2, 16), "is at sample 17 of 16 in epoch 1: beyond the epoch"),
        (Position(1, 1, 4, 16, 2, 2, 20), "beyond the epoch"),
        (Position(1, 0, 4, 16, 2, 2, 16), "in epoch 0: beyond the epoch"),
    ],
)
def test_a_position_that_cannot_be_is_refused(position, message):
    with pytest.raises(IotwinError, match=message):
        go_on(position, 16, 2, 2)


def test_no_store_has_a_world_of_nobody():
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"seed":1,"epoch":1,"position":0,"samples":1,"batch_size":1,"world_size":0}', type=Position)
