"""Graph network with messages summed by index_add; every batch is a union of graphs, in files that the first run makes."""

import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def make_graphs(folder, count=60):
    os.makedirs(folder, exist_ok=True)
    rng = np.random.default_rng(7)
    for k in range(count):
        nodes = int(rng.integers(5, 12))
        edges = rng.integers(0, nodes, (2, 3 * nodes))
        features = rng.normal(size=(nodes, 4)).astype(np.float32)
        target = np.float32(features[edges[0]].sum() / nodes)
        temporary = os.path.join(folder, f".{k}.{os.getpid()}.npz")
        np.savez(temporary, edges=edges, features=features, target=target)
        os.replace(temporary, os.path.join(folder, f"graph_{k:03d}.npz"))


class GraphFiles(Dataset):
    def __init__(self, folder):
        self.files = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("graph_"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        with np.load(self.files[i]) as graph:
            return torch.from_numpy(graph["features"]), torch.from_numpy(graph["edges"]), float(graph["target"])


def collate(graphs):
    offset, xs, edges, owner, targets = 0, [], [], [], []
    for k, (x, edge, target) in enumerate(graphs):
        xs.append(x)
        edges.append(edge + offset)
        owner.append(torch.full((len(x),), k))
        targets.append(target)
        offset += len(x)
    return torch.cat(xs), torch.cat(edges, dim=1), torch.cat(owner), torch.tensor(targets)


class Layer(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.message = nn.Linear(2 * dim_in, dim_out)
        self.update = nn.Linear(dim_in + dim_out, dim_out)

    def forward(self, x, edges):
        source, destination = edges
        messages = torch.relu(self.message(torch.cat([x[source], x[destination]], dim=1)))
        summed = torch.zeros(len(x), messages.size(1)).index_add(0, destination, messages)
        return torch.relu(self.update(torch.cat([x, summed], dim=1)))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(4, 16), Layer(16, 16)])
        self.out = nn.Linear(16, 1)

    def forward(self, x, edges, owner, count):
        for layer in self.layers:
            x = layer(x, edges)
        pooled = torch.zeros(count, 16).index_add_(0, owner, x)
        return self.out(pooled).squeeze(1)


def train_one_epoch(model, loader, optimizer, loss_fn):
    model.train()
    total, seen = 0.0, 0
    for x, edges, owner, target in loader:
        prediction = model(x, edges, owner, len(target))
        loss = loss_fn(prediction, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += float(loss) * len(target)
        seen += len(target)
    return total / seen


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "toy_graphs"))
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=12)
    p.add_argument("--workers", type=int, default=0)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()

    torch.set_num_threads(1)
    if not os.path.isdir(a.data) or len(os.listdir(a.data)) < 60:
        make_graphs(a.data)
    torch.manual_seed(a.seed)
    loader = DataLoader(GraphFiles(a.data), a.batch_size, shuffle=True, num_workers=a.workers, collate_fn=collate)
    net = GraphNet()
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(a.epochs):
        loss = train_one_epoch(net, loader, opt, nn.MSELoss())
        print("epoch %d, mean squared error %.6f" % (epoch, loss))
