import torch

from tdcd.core.average import Mean


def test_stack_and_single_blocks_give_the_same_mean() -> None:
    blocks = [{"w": torch.randn(3, 2), "n": torch.tensor(k)} for k in range(5)]
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5])
    one, two, three = Mean(blocks[0]), Mean(blocks[0]), Mean(blocks[0])
    for block, weight in zip(blocks, weights.tolist(), strict=True):
        one.add(block, weight)
        for name, tensor in block.items():
            three.add_tensor(name, tensor, weight)
        three.count(weight)
    two.add_stack({name: torch.stack([b[name] for b in blocks]) for name in blocks[0]}, weights)
    expected = sum(w * b["w"].double() for w, b in zip(weights, blocks, strict=True)) / weights.sum()
    assert isinstance(expected, torch.Tensor)
    for mean in (one.result(), two.result(), three.result()):
        assert torch.allclose(mean["w"], expected.float())
        assert mean["w"].dtype == torch.float32
        assert mean["n"].dtype == torch.int64
        assert mean["n"].item() == 2


def test_many_float32_blocks_lose_nothing() -> None:
    mean = Mean({"w": torch.zeros(1)})
    for _ in range(20_000):
        mean.add({"w": torch.tensor([0.1])}, 1.0)
    assert mean.result()["w"].item() == torch.tensor(0.1).item()
