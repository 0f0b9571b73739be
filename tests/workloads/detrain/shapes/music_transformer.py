"""A sequence model on note events, in the shape of the first script that DETrain was made for."""

import argparse
import random
import tempfile
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--l_r", default=0.01, type=float, help="learning rate")
parser.add_argument("--batch_size", default=2, type=int)
parser.add_argument("--max_seq", default=8, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--save_path", default=None, type=str)
args = parser.parse_args()

PAD, EVENTS = 0, 24


class Data:
    """Files of note events, of which batches are drawn at random."""

    def __init__(self, count=16, seed=3):
        self.random = random.Random(seed)
        self.files = [[self.random.randrange(1, EVENTS) for _ in range(self.random.randrange(12, 40))] for _ in range(count)]

    def _sequence(self, length):
        notes = self.random.choice(self.files)
        if len(notes) <= length:
            raise IndexError("the piece is too short")
        start = self.random.randrange(len(notes) - length)
        return notes[start : start + length]

    def slide_seq2seq_batch(self, batch_size, length, mode="train"):
        rows = torch.tensor([self._sequence(length + 1) for _ in range(batch_size)])
        return rows[:, :-1], rows[:, 1:]


class MusicTransformer(nn.Module):
    def __init__(self, size=16, heads=2):
        super().__init__()
        self.embedding = nn.Embedding(EVENTS, size, padding_idx=PAD)
        self.layer = nn.TransformerEncoderLayer(size, heads, 32, batch_first=True)
        self.output = nn.Linear(size, EVENTS)
        self.optimizer = None

    def forward(self, x):
        return self.output(self.layer(self.embedding(x)))

    def train_on_batch(self, x, y):
        self.train()
        loss = nn.functional.cross_entropy(self(x).flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, x, y):
        self.eval()
        return nn.functional.cross_entropy(self(x).flatten(0, 1), y.flatten()).item()

    def save(self, folder):
        torch.save(self.state_dict(), Path(folder) / "mt.pt")


torch.manual_seed(1)
dataset = Data()
mt = MusicTransformer()
mt.optimizer = torch.optim.Adam(mt.parameters(), lr=args.l_r)
save_path = args.save_path or tempfile.mkdtemp()
# Train the model on batches of pieces, some of which are too short
mt.train()
for e in range(args.epochs):
    print(f"epoch {e}")
    for b in range(len(dataset.files) // args.batch_size):
        try:
            batch_x, batch_y = dataset.slide_seq2seq_batch(args.batch_size, args.max_seq)
        except IndexError:
            continue
        result_metrics = mt.train_on_batch(batch_x, batch_y)
        if b % 4 == 0:
            for _ in range(10):
                try:
                    eval_x, eval_y = dataset.slide_seq2seq_batch(args.batch_size, args.max_seq, "eval")
                except IndexError:
                    continue
                break
            eval_metrics = mt.evaluate(eval_x, eval_y)
            mt.save(save_path)
            print(f"batch {b} loss {result_metrics:.4f} evaluation {eval_metrics:.4f}")
