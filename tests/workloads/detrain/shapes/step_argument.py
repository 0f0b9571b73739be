"""Chooses the step from a dict, and passes it to a general loop."""

import torch


def sgd_step(state, batch):
    loss = state["loss"](state["model"](batch[0]), batch[1])
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()


def evaluation_step(state, batch):
    with torch.no_grad():
        state["loss"](state["model"](batch[0]), batch[1])


STEPS = {"train": sgd_step, "evaluate": evaluation_step}


def each(data, function, state):
    for batch in data:
        function(state, batch)


torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
state = {"model": model, "loss": torch.nn.MSELoss(), "optimizer": torch.optim.SGD(model.parameters(), lr=0.05)}
data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]
for epoch in range(2):
    each(data, STEPS["train"], state)
    each(data, STEPS["evaluate"], state)
