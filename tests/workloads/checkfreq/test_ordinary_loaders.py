"""Jobs with a DataLoader of torch's own, killed and resumed: every sample once, and the weights of an uninterrupted job."""

import functools

import pytest
import torch
import torch._dynamo  # what the first optimizer imports, here once for all jobs that are forked
from torch.utils.data import DataLoader, RandomSampler

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted
from iotwin.workloads.checkfreq.epochs.batch_digest import batch_digest
from iotwin.workloads.checkfreq.iterator import CFIterator
from tests.workloads.checkfreq import stranger
from tests.workloads.checkfreq.stranger import DRAWN, LOADERS, ONCE, ONCE_EACH, REFUSED, STEPS, killed_and_resumed, often, run

pytestmark = pytest.mark.torch
# By loader the steps at which it is killed: a checkpoint is taken every 3 steps and after each 10, where an epoch ends.
FEW = {
    "shuffle": (5, 17),
    "shuffle, 2 workers": (14,),
    "shuffle, persistent": (5, 18),
    "shuffle, seeded, 2 workers": (12, 25),
    "stream": (14,),
    "stream, 2 workers": (18,),
    "stream, seeded, persistent": (25,),
    "sampler with numpy's generator": (14,),
    "validates between epochs, 2 workers": (12, 24),
    "seeds each epoch": (12,),
    "with replacement, seeded, 2 workers": (14,),
    "weighted, 2 workers": (18,),
}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a forked job would wait for threads that it does not have
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What an uninterrupted job reads and its weights, by the name of its loader."""
    return functools.cache(lambda name: run(tmp_path_factory.mktemp("whole"), name, LOADERS[name], store="whole")[:2])


@pytest.mark.parametrize(("name", "killed_at"), [(name, step) for name, steps in FEW.items() for step in steps])
def test_a_job_killed_within_an_epoch_takes_every_sample_once_and_ends_with_the_same_weights(
    tmp_path, uninterrupted, name, killed_at
):
    whole, weights = uninterrupted(name)
    lines, resumed_weights, said = killed_and_resumed(tmp_path, name, LOADERS[name], killed_at)
    assert name in DRAWN or often(whole) == ONCE_EACH
    assert lines == whole and resumed_weights == weights, said
    behind_end = killed_at % STEPS in (1, 2, 3)  # of an epoch; its own checkpoints follow after each third step
    assert behind_end or f"{counted((killed_at - 1) % STEPS // 3 * 3, 'batch')} read again" in said


def test_few_are_of_all():
    assert FEW.keys() <= LOADERS.keys() == {*ONCE, *DRAWN}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_resumed_exactly_is_refused_in_one_line(tmp_path, name):
    make_loader, reason = REFUSED[name]
    _, weights, said = killed_and_resumed(tmp_path, name, make_loader, 2 * STEPS + 8)
    assert weights is None
    assert reason in said.splitlines()[-1] and said.splitlines()[-1].startswith("iotwin.common.errors.IotwinError: ")


def test_what_is_killed_again_after_it_was_resumed_is_resumed_again(tmp_path, uninterrupted):
    name = "shuffle, persistent"
    whole, weights = uninterrupted(name)
    first, _, _ = run(tmp_path, name, LOADERS[name], 14)
    second, _, _ = run(tmp_path, name, LOADERS[name], 19)
    third, resumed_weights, _ = run(tmp_path, name, LOADERS[name])
    assert resumed_weights == weights
    for lines in (first, second, third):
        assert lines == whole[lines[0][1] - 1 : lines[-1][1]]


def test_a_shuffled_loader_without_its_generators_is_refused_and_one_of_fixed_order_goes_on():
    state = {"epoch": 1, "iter": 2, "steps_so_far": 5}
    iterator = CFIterator(DataLoader(range(12), 4, shuffle=True))
    with pytest.raises(IotwinError, match="holds no generators for this loader"):
        iterator.load_state_dict(state)
    iterator = CFIterator(DataLoader(range(12), 4))
    iterator.load_state_dict(state)
    assert [batch.tolist() for batch in iterator] == [[8, 9, 10, 11]] and iterator.epoch == 2


def test_a_sampler_that_draws_from_the_operating_system_is_refused(tmp_path):
    import random

    def make_loader():
        return DataLoader(stranger.Plain(), stranger.BATCH, sampler=stranger.ByPython(random.SystemRandom()))

    _, weights, said = killed_and_resumed(tmp_path, "system", make_loader, 15)
    assert weights is None and "draws from the operating system" in said.splitlines()[-1]


def test_a_loader_with_other_generators_than_the_checkpoint_s_is_refused(tmp_path):
    run(tmp_path, "seeded", LOADERS["shuffle, seeded"], 8)
    _, weights, said = run(tmp_path, "unseeded", LOADERS["shuffle"])
    assert weights is None
    assert "draws from torch.Generator, this job's from no separate generator" in said.splitlines()[-1]


def test_a_loader_s_own_collating_is_left_to_it():
    loader = DataLoader(
        stranger.Plain(), stranger.BATCH, num_workers=1, persistent_workers=True, collate_fn=lambda samples: len(samples)
    )
    assert list(CFIterator(loader)) == [stranger.BATCH] * STEPS


def test_batches_are_told_apart_by_what_they_hold():
    tensor = torch.arange(10_000.0)
    batches = [
        tensor, tensor + 1, tensor.int(), tensor.reshape(100, 100), [tensor], (tensor, 1), {"x": tensor}, {"y": tensor},
        ["a", "b"], ["a", "c"], tensor.numpy().astype("f8"), torch.tensor(1.0), torch.tensor(2.0), None,
    ]  # fmt: skip
    assert len({batch_digest(batch) for batch in batches}) == len(batches)
    assert batch_digest({"x": [tensor.clone(), "a"]}) == batch_digest({"x": [tensor, "a"]})


def test_the_loader_s_sampler_may_be_of_any_kind_and_the_global_generators_are_left_to_the_job(tmp_path):
    torch.manual_seed(3)
    expected = [batch.tolist() for batch in DataLoader(range(12), 4, sampler=RandomSampler(range(12)))], torch.rand(())
    torch.manual_seed(3)
    assert ([batch.tolist() for batch in CFIterator(DataLoader(range(12), 4, shuffle=True))], torch.rand(())) == expected
