"""Loops over a generator function of the script."""

import torch


def batches(features, targets, size):
    order = torch.randperm(len(features))
    for start in range(0, len(order), size):
        index = order[start : start + size]
        yield features[index], targets[index]


def main():
    torch.manual_seed(1)
    features = torch.randn(40, 4)
    targets = features.sum(1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in batches(features, targets, 8):
            loss = (model(x) - y).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
