import torch
from hypothesis import given
from hypothesis import strategies as st

from tdcd.core.script import total
from tdcd.core.topology import Roster, deal


@given(st.integers(1, 8), st.integers(1, 40), st.data())
def test_a_batch_is_dealt_to_its_owners(clients: int, samples: int, data: st.DataObject) -> None:
    owner = torch.tensor(data.draw(st.lists(st.integers(0, clients - 1), min_size=samples, max_size=samples)))
    batch = torch.tensor(sorted(data.draw(st.sets(st.integers(0, samples - 1), min_size=1))))
    shards = deal(batch, Roster(tuple(map(str, range(clients))), owner))
    assert sorted(shards.order.tolist()) == list(range(len(batch)))
    assert shards.idle == clients - len(shards.clients)
    assert shards.clients.tolist() == sorted(set(owner[batch].tolist()))
    seen = []
    for (client, part), start, count in zip(shards, shards.starts.tolist(), shards.counts.tolist(), strict=True):
        mine = batch[shards.order[part]].tolist()
        assert mine == [p for p in batch.tolist() if owner[p] == client]
        assert len(mine) == count > 0
        assert start == part.start
        seen += mine
    assert sorted(seen) == batch.tolist()


def test_sums_of_embeddings() -> None:
    phi = {"b": torch.tensor([[1.0]]), "a": torch.tensor([[10.0]]), "c": torch.tensor([[100.0]])}
    assert total(phi, {"b", "c"}) == 101
    assert total(phi, {"a", "c"}) == 110
    assert total({"a": phi["a"]}, ()) == 0
    assert phi["a"].item() == 10
