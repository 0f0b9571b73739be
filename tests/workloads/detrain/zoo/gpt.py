"""A character-level GPT: batches are drawn from the text by their index, without a loader."""

import argparse
import math
import random

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

block_size = 16
n_embd = 32
n_head = 2
n_layer = 2
dropout = 0.1


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)).bool())
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, n_head, C // n_head).transpose(1, 2) for t in self.c_attn(x).split(n_embd, dim=2))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = self.drop(F.softmax(att.masked_fill(~self.mask[:T, :T], float("-inf")), dim=-1))
        return self.c_proj((att @ v).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class Text:
    def __init__(self, length, seed):
        rng = random.Random(seed)
        words = ["the ", "cat ", "sat ", "on ", "a ", "mat. "]
        text = "".join(rng.choice(words) for _ in range(length))
        self.chars = sorted(set(text))
        self.data = np.array([self.chars.index(c) for c in text], dtype=np.int64)

    def get_batch(self, index, order, batch_size):
        starts = order[index * batch_size : (index + 1) * batch_size]
        x = torch.stack([torch.from_numpy(self.data[i : i + block_size]) for i in starts])
        y = torch.stack([torch.from_numpy(self.data[i + 1 : i + 1 + block_size]) for i in starts])
        return x, y


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--batches", type=int, default=6, help="batches of an epoch")
    parser.add_argument("--workers", type=int, default=0, help="unused: batches are sliced from memory")
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    text = Text(300, seed=0)
    model = GPT(len(text.chars))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, 0.95))
    running = None
    for epoch in range(args.epochs):
        order = np.random.permutation(len(text.data) - block_size - 1)
        for index in range(args.batches):
            x, y = text.get_batch(index, order, args.batch_size)
            _, loss = model(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
        print(f"epoch {epoch} loss {loss.item():.6f} running {running:.6f}")


if __name__ == "__main__":
    main()
