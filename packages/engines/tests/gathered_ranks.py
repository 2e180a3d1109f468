"""One of two ranks that share tensors; rank 0 sends it to a receiver in a thread."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from weight_sync_toy import ToyNetwork, together

from rlinf.core import Weights
from rlinf.engines.weight_sync import BucketWeightSync
from rlinf.engines.weights.checksum import checksums
from rlinf.engines.weights.lazy_tensors import Gathered


class Asked(Gathered):
    count = 0

    def __getitem__(self, name):
        self.count += 1
        whole = super().__getitem__(name)
        assert type(whole) is torch.Tensor
        return whole


def main(meeting: str, rank: int) -> dict:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3))
    plain = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    mesh = init_device_mesh("cpu", (2,))
    state = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in plain.items()}
    sync, network, tensors = BucketWeightSync(bucket_size=32, verify=True, timeout_s=100), ToyNetwork(), Asked(state)
    weights = Weights(tensors=tensors, version=1)
    seen = {"placements": str(state["0.weight"].placements), "names": list(tensors), "count": len(tensors)}
    if rank:
        sync.send(network.at("actor", rank), weights, "rollout", [])
    else:
        held = Weights(tensors={name: torch.zeros_like(tensor) for name, tensor in plain.items()}, version=0)
        _, received = together(
            lambda: sync.send(network.at("actor", 0), weights, "rollout", [0]),
            lambda: sync.recv(network.at("rollout", 0), held, "actor", 0),
            join_s=110,
        )
        seen["arrived"] = checksums(received.tensors) == checksums(plain)
    return {**seen, "asked": tensors.count}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
    sys.stdout.flush()
    os._exit(0)
