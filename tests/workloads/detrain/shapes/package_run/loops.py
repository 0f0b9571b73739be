"""Loops."""


def fit(model, loader, optimizer, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).pow(2).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    for never in range(3):
        fit(None, [], None, 0)
