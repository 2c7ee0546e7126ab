"""The verdicts of the audit: pure functions of what the ranks report."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from torch.utils.data import DataLoader, Subset, TensorDataset  # noqa: E402

from allranks.errors import UsageError  # noqa: E402
from allranks.train.data import LoaderOptions, distribute_loader  # noqa: E402
from allranks.train.data.audit import (  # noqa: E402  # noqa: E402
    AuditLog,
    RankReport,
    StreamAuditLog,
    compare,
    compare_streams,
    ranks_text,
)
from allranks.train.data.map_style import compare_identities, identify_dataset  # noqa: E402
from allranks.train.data.sample_hash import (  # noqa: E402
    digest,
    fingerprint,
    fingerprints,
    mix_seed,
    ordered_digest,
)


def report(rank: int, given: Any, whole: Any, batches: int = 3) -> RankReport:
    return RankReport(rank, batches, digest([np.array(given)]), digest([np.array(whole)]))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([[0, 1, 2], [3, 4, 5]], "each was seen exactly once"),
        ([[0, 1, 2], [0, 1, 2]], "Ranks 0 and 1 got the same samples"),
        ([[0, 1, 2], [3, 4]], "1 of 6 samples were never seen"),
        ([[0, 1, 2, 3], [3, 4, 5]], "1 samples were seen twice"),
        ([[0, 1, 2], [3, 4, 4]], "some were seen twice and the same number never"),
    ],
)
def test_the_mistake_is_named(given: list[list[int]], text: str) -> None:
    verdict = compare([report(rank, one, range(6)) for rank, one in enumerate(given)])
    assert text in verdict.message
    assert verdict.ok is (text == "each was seen exactly once")


def test_fewer_batches_and_other_orders_are_named() -> None:
    few = compare([report(0, [0, 1], range(4)), report(1, [2], range(4), batches=2)])
    assert not few.ok
    assert "rank 1 had 2, the others 3" in few.message
    other = compare([report(0, [0, 1], range(4)), report(1, [2, 3], range(1, 5))])
    assert not other.ok
    assert "Rank 1 had another order" in other.message


def test_one_index_on_two_ranks_is_fine_when_the_sampler_drew_it_twice() -> None:
    assert compare([report(0, [7], [7, 7]), report(1, [7], [7, 7])]).ok


def test_digests() -> None:
    a, b = np.array([5, 1, 9]), np.array([9, 5, 1])
    assert digest([a]) == digest([b]) == digest([a[:1], a[1:]])
    assert digest([a]) != digest([np.array([5, 1, 8])])
    assert digest([np.array([1, 1])]) != digest([np.array([2, 2])])
    assert ordered_digest(a) != ordered_digest(b)
    assert len({mix_seed(s, e) for s in range(50) for e in range(50)}) == 2500


def test_the_audit_log_does_not_count_filler_and_stops_at_its_limit() -> None:
    audit_log = AuditLog(limit=4)
    for number in range(4):
        chunk = np.array([2 * number, 2 * number + 1])
        audit_log.add(chunk[:1], chunk, counts=number != 1)
    found = audit_log.report(0, None)
    assert (found.batches, found.given.length, found.expected.length) == (2, 1, 4)


def test_ranks_in_words() -> None:
    assert ranks_text([3]) == "Rank 3"
    assert ranks_text([0, 1]) == "Ranks 0 and 1"
    assert ranks_text(range(9)) == "Ranks 0, 1, 2 and 6 more"


def test_check_needs_no_group_alone_and_only_speaks_once() -> None:
    loader = DataLoader(TensorDataset(torch.arange(10.0)), batch_size=3, shuffle=True)
    distributed = distribute_loader(loader, rank=0, size=1, device="cpu")
    list(distributed.epoch(0))
    verdict = distributed.check()
    assert verdict.ok
    assert "10 samples over 1 rank" in verdict.message
    list(distributed.epoch(1))
    assert distributed.check() is None
    off = distribute_loader(
        loader, rank=0, size=1, device="cpu", options=LoaderOptions(audit=False)
    )
    list(off.epoch(0))
    assert off.check() is None


@pytest.mark.parametrize("skip", [0, 2])
def test_an_epoch_that_was_cut_short_or_resumed_is_judged_by_its_part(skip: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(20.0)), batch_size=3, shuffle=True)
    distributed = distribute_loader(loader, rank=0, size=1, device="cpu")
    batches = distributed.epoch(0, skip=skip)
    for _ in range(3):
        next(batches)
    verdict = distributed.check()
    assert verdict.ok
    assert "9 samples" in verdict.message


def test_a_fault_in_the_sharing_would_be_found() -> None:
    """Two loaders that both are rank 0."""
    loader = DataLoader(TensorDataset(torch.arange(20.0)), batch_size=3, shuffle=True)
    distributed_loaders = [
        distribute_loader(loader, rank=0, size=2, device="cpu") for _ in range(2)
    ]
    for distributed in distributed_loaders:
        list(distributed.epoch(0))
    verdict = compare(
        [
            distributed.rank_report()._replace(rank=rank)
            for rank, distributed in enumerate(distributed_loaders)
        ]
    )
    assert not verdict.ok
    assert "same samples" in verdict.message


def stream(values: Any, repeated: int = 0) -> Any:
    audit_log = StreamAuditLog()
    for start in range(0, len(values), 4):
        batch = torch.tensor(values[start : start + 4])
        audit_log.add({"x": batch.float(), "y": batch}, len(batch))
    audit_log.repeated = repeated
    return audit_log


@pytest.mark.parametrize(
    ("values", "ok"),
    [
        ([range(40), range(40, 80), range(80, 120)], True),
        ([range(40), range(40, 80), range(40)], False),
        ([range(40), range(35, 75), range(80, 120)], False),
        (
            [[1, 2, 3, 4] * 10, [1, 2, 3, 4] * 10, [1, 2, 3, 4] * 10],
            True,
        ),  # the data repeats itself
    ],
)
def test_streams(values: Any, ok: bool) -> None:
    reports = [stream(list(one)).report(rank, 3) for rank, one in enumerate(values)]
    verdict = compare_streams(reports)
    assert verdict.ok is ok
    if not ok:
        named = "Ranks 0 and 2" if values[2] == range(40) else "Ranks 0 and 1"
        assert named in verdict.message


def test_uneven_streams_are_told() -> None:
    reports = [stream([1, 2]).report(0, 2), stream([3], repeated=3).report(1, 2)]
    assert "rank 1 had 3 batches fewer" in compare_streams(reports).message


def test_long_streams_are_compared_by_the_same_choice_of_samples() -> None:
    reports = [
        stream(list(range(600))).report(0, 4096),
        stream(list(range(599, -1, -1))).report(1, 4096),
    ]
    assert all(one.cut and len(one.lowest) == 256 for one in reports)
    assert not compare_streams(reports).ok


def test_fingerprints_tell_samples_apart() -> None:
    images = torch.zeros(3, 1, 28, 28)
    images[1, 0, 27, 27] = images[2, 0, 14, 3] = 1  # they differ far from their beginnings
    words = fingerprints([images, torch.tensor([1, 1, 1])], 3)
    assert words is not None
    assert len(set(words.tolist())) == 3
    assert fingerprints(["a", "b"], 2) is None
    assert fingerprint([images]) == fingerprint([images.clone()]) != fingerprint([images + 1])
    assert fingerprint("a") != fingerprint("b")
    assert fingerprint(torch.zeros(0)) == fingerprint(torch.zeros(0))
    half = torch.rand(2, 3).to(torch.bfloat16)
    assert fingerprint(half) == fingerprint(half.clone())


def test_identities() -> None:
    data = TensorDataset(torch.arange(10.0))
    whole = identify_dataset(data, read=True)[0]
    assert compare_identities([whole, identify_dataset(data, read=True)[0]]) == ""
    other = identify_dataset(TensorDataset(torch.arange(10.0) + 1), read=True)[0]
    assert "different samples" in compare_identities([whole, other])
    parts = [identify_dataset(Subset(data, part), read=False)[0] for part in ([0, 1], [2, 3])]
    with pytest.raises(UsageError, match="different parts"):
        compare_identities(parts)


def test_a_sample_that_cannot_be_read_is_a_note() -> None:
    class Broken(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            raise OSError("no such file")

    found, note = identify_dataset(Broken(torch.ones(3)), read=True)
    assert found.samples == ()
    assert "no such file" in note
