"""FedAvg of one workload in Flower's simulation on Ray. Runs in a Python that has Flower, apart from tdcd's.

    python flower_fedavg.py '{"clients": 50, "rows": 1000, "batch": 40, "steps": 10, "rounds": 10, "rate": 0.01}'

Prints the seconds of each round as JSON.
"""

import json
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

SHAPE: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
client_app, server_app = ClientApp(), ServerApp()
held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
"""The rows of clients that this process has computed."""
ends: list[float] = []


def network() -> nn.Module:
    """Make the MLP of tdcd's workload."""
    return nn.Sequential(nn.Linear(25, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def rows_of(client: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's rows, made once in a process."""
    if client not in held:
        generator = torch.Generator().manual_seed(client)
        features = torch.randn(count, 25, generator=generator)
        held[client] = features, torch.randint(10, (count,), generator=generator)
    return held[client]


@client_app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Take local steps on a mini-batch, as a client of tdcd does."""
    torch.set_num_threads(1)
    shape = json.loads(str(message.content["config"]["shape"]))
    features, labels = rows_of(int(context.node_config["partition-id"]), shape["rows"])
    chosen = torch.randperm(len(features))[: shape["batch"]]
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), shape["rate"])
    for _ in range(shape["steps"]):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(chosen)})}
    return Message(content=RecordDict(content), reply_to=message)


class Timed(FedAvg):  # type: ignore[misc]
    """Notes when each round ends."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        """Average the clients' weights."""
        replies = list(replies)
        if len(replies) != SHAPE["clients"] or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"round {server_round}: not all clients of Flower have answered")
        result = super().aggregate_train(server_round, replies)
        ends.append(time.perf_counter())
        return result


@server_app.main()  # type: ignore[untyped-decorator]
def serve(grid: Grid, context: Context) -> None:  # noqa: ARG001
    """Run all rounds; the first one, which starts processes, is not counted."""
    strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=SHAPE["clients"])
    strategy.start(
        grid,
        ArrayRecord(network().state_dict()),
        num_rounds=SHAPE["rounds"] + 1,
        train_config=ConfigRecord({"shape": json.dumps(SHAPE)}),
    )


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=SHAPE["clients"],
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}},
    )
    print(json.dumps([after - before for before, after in pairwise(ends)]))
