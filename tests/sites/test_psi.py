import hashlib
import os
import subprocess
import sys
from functools import reduce
from pathlib import Path

import nacl.bindings
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import examples
from tdcd.data.arrays import Array
from tdcd.errors import DeploymentError
from tdcd.sites.hub.psi import POINT, PRIME, Done, Member, Points, check_set, common_places, hashed, ring


def intersection(
    sets: dict[str, Array], members: dict[str, Member], seen: list[Points] | None = None
) -> dict[str, Array]:
    """Play all hubs: the sets go round the ring, meet at the leader, and the places come back."""
    full = {}
    for origin, ids in sets.items():
        points = hashed(ids)
        for hub in ring(sets, origin):
            points = members[hub].masked(origin, points)
            if seen is not None:
                seen.append(points)
        full[origin] = points
    result = {}
    for origin, places in common_places(full).items():
        for hub in reversed(ring(sets, origin)):
            places = members[hub].unshuffled(origin, places)
        result[origin] = sets[origin][places]
    return result


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.sets(st.integers(-50, 50), max_size=30), min_size=1, max_size=4),
    st.booleans(),
)
def test_every_hub_learns_the_common_ids_and_no_others(sets: list[set[int]], texts: bool) -> None:
    kind = np.str_ if texts else np.int64
    ids = {f"silo-{j}": np.array(sorted(own), dtype=np.int64).astype(kind) for j, own in enumerate(sets)}
    expected = reduce(np.intersect1d, ids.values())
    for result in intersection(ids, {silo: Member() for silo in ids}).values():
        assert np.array_equal(np.sort(result), np.sort(expected))


def test_a_set_on_its_way_shows_nothing_but_its_size() -> None:
    ids = {"a": np.arange(20), "b": np.arange(10, 30), "c": np.arange(15, 35)}
    seen: list[Points] = []
    intersection(ids, {silo: Member(threads=2) for silo in ids}, seen)
    known = {bytes(point) for own in ids.values() for point in hashed(own)}
    assert [points.shape for points in seen] == [(20, POINT)] * 9
    for number, points in enumerate(seen):
        rows = {bytes(point) for point in points}
        assert not rows & known
        if (number + 1) % 3:  # until a set is masked by all, no two can be compared
            others = [other for place, other in enumerate(seen) if place != number]
            assert not rows & {bytes(point) for other in others for point in other}


def test_order_is_lost_on_the_way() -> None:
    member = Member()
    points = hashed(np.arange(100))
    one, two = member.masked("a", points), member.masked("b", points)
    plain = [nacl.bindings.crypto_scalarmult(member.done.secret, bytes(point)) for point in points]
    assert [bytes(p) for p in one] != plain
    assert [bytes(p) for p in one] != [bytes(p) for p in two], "each silo's set is shuffled in a way of its own"
    assert {bytes(p) for p in one} == {bytes(p) for p in two} == set(plain)


def test_numbers_and_texts_are_different_ids() -> None:
    assert not (hashed(np.array([7])) == hashed(np.array(["7"]))).all()


def test_hashes_are_points_of_the_curve() -> None:
    """v² = u³ + 486662·u² + u has a solution: on the twist it has none; and the conversion is libsodium's."""
    points = hashed(np.array([f"id-{number}" for number in range(200)]))
    for u in (int.from_bytes(bytes(point), "little") for point in points):
        assert pow(u**3 + 486662 * u**2 + u, (PRIME - 1) // 2, PRIME) == 1
    text = hashlib.blake2b(b"tdcd psi 2 U id-7", digest_size=32).digest()
    edwards = nacl.bindings.crypto_core_ed25519_from_uniform(text)
    assert bytes(points[7]) == nacl.bindings.crypto_sign_ed25519_pk_to_curve25519(edwards)


def test_nothing_is_written_to_the_temporary_directory(tmp_path: Path) -> None:
    """Where it is mounted noexec, a library that unpacks itself there cannot be loaded."""
    code = (
        "import numpy as np; from tdcd.sites.hub.psi import Member, hashed; Member().masked('a', hashed(np.arange(9)))"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    assert not list(tmp_path.iterdir())


LOW_ORDER = (
    0,
    1,
    PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
"""All coordinates of points whose order divides 8, of the curve and its twist."""


def test_damaged_sets_are_refused() -> None:
    member, good = Member(), hashed(np.arange(3))
    with pytest.raises(DeploymentError, match="set of silo 'b' is damaged: not a coordinate"):
        member.masked("b", np.full((1, POINT), 255, dtype=np.uint8))
    same = good[:1].copy()
    same[0, -1] |= 128  # another way to write the same point
    with pytest.raises(DeploymentError, match="set of silo 'b' is damaged: not a coordinate"):
        member.masked("b", np.concatenate([good, same]))
    with pytest.raises(DeploymentError, match="set of silo 'b' has a point twice"):
        member.masked("b", np.concatenate([good, good[:1]]))
    with pytest.raises(DeploymentError, match="set of silo 'b' has 3 points, and not 4"):
        check_set("b", good, 4)
    for low in LOW_ORDER:
        point = np.frombuffer(low.to_bytes(POINT, "little"), np.uint8).reshape(1, POINT)
        with pytest.raises(DeploymentError, match="set of silo 'b' (has a point of low order|is damaged)"):
            member.masked("b", np.concatenate([good, point]))
    with pytest.raises(DeploymentError, match="set of silo 'b' is damaged: no list of points"):
        member.masked("b", np.zeros((3, 5), dtype=np.uint8))
    member.masked("c", hashed(np.arange(3)))
    for places in ([3], [-1]):
        with pytest.raises(DeploymentError, match="places that the set of silo 'c' does not have"):
            member.unshuffled("c", np.array(places))
    with pytest.raises(DeploymentError, match="silo 'd'"):
        member.unshuffled("d", np.array([0]))


def test_progress_counts_every_point() -> None:
    counted: list[int] = []
    Member(threads=2).masked("a", hashed(np.arange(4321)), counted.append)
    assert sum(counted) == 4321


def test_a_member_that_is_started_again_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcd.sites.hub.psi.BLOCK", 40)
    ids = pl.Series(np.arange(100))
    folder = tmp_path / "aligning"

    def member(about: str = "bank") -> Member:
        return Member(1, Done(folder, about))

    first = member()
    masked = first.masked("bank", first.hashed(ids))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.iterdir())

    def computed(*_: object) -> bytes:
        raise AssertionError("it was done before")

    steps: list[int] = []
    with monkeypatch.context() as nothing:
        nothing.setattr("nacl.bindings.crypto_scalarmult", computed)
        nothing.setattr("nacl.bindings.crypto_core_ed25519_from_uniform", computed)
        again = member()
        assert (again.masked("bank", again.hashed(ids), steps.append) == masked).all()
        assert sum(steps) == 100
        assert (again.unshuffled("bank", np.arange(100)) == np.arange(100)).all()
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    damaged = next(name for name, content in files.items() if len(content) > 64)
    (folder / damaged).write_bytes(files[damaged][:-1] + b"x")
    third = member()
    assert (third.masked("bank", third.hashed(ids)) == masked).all(), "a damaged block is made again"
    other = member("other IDs")
    assert (other.masked("bank", other.hashed(ids)) != masked).any(), "other IDs have another secret"
    assert set(files).isdisjoint(file.name for file in folder.iterdir() if file.name != "secret")
