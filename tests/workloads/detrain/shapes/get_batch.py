"""Draws crops of a text by a function, and fetches the next batch while it computes on the present one."""

import torch

torch.manual_seed(1)
text = torch.randint(0, 11, (500,))
model = torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 11))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
max_iters, accumulated = 4, 2


def get_batch(size=4, block=6):
    starts = torch.randint(len(text) - block - 1, (size,))
    x = torch.stack([text[i : i + block] for i in starts])
    y = torch.stack([text[i + 1 : i + block + 1] for i in starts])
    return x, y


X, Y = get_batch()
iter_num = 0
while True:
    for micro_step in range(accumulated):
        logits = model(X)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), Y.flatten()) / accumulated
        X, Y = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
