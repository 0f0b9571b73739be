# coding: utf-8
"""Language model by an LSTM: the columns of the text are trained on in stretches, and the hidden state is carried over."""

import argparse
import math
import time

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description="LSTM language model")
parser.add_argument("--emsize", type=int, default=24)
parser.add_argument("--nhid", type=int, default=32)
parser.add_argument("--lr", type=float, default=5.0, help="initial learning rate")
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=8, metavar="N")
parser.add_argument("--workers", type=int, default=0, help="unused: the text is in memory")
parser.add_argument("--bptt", type=int, default=12, help="sequence length")
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--seed", type=int, default=1111)
args = parser.parse_args()

torch.manual_seed(args.seed)
torch.set_num_threads(1)

NTOKENS = 40


def corpus(tokens, seed):
    """A walk over the vocabulary: the next word is mostly the successor of the current one."""
    generator = torch.Generator().manual_seed(seed)
    jumps = torch.rand(tokens, generator=generator) < 0.1
    steps = torch.where(jumps, torch.randint(NTOKENS, (tokens,), generator=generator), torch.ones(tokens, dtype=torch.long))
    return torch.cumsum(steps, 0) % NTOKENS


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


train_data = batchify(corpus(8 * 61, 0), args.batch_size)
val_data = batchify(corpus(200, 1), args.batch_size)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, num_layers=2, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, x, hidden):
        emb = self.drop(self.encoder(x))
        output, hidden = self.rnn(emb, hidden)
        return self.decoder(self.drop(output)).view(-1, NTOKENS), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return weight.new_zeros(2, bsz, self.rnn.hidden_size), weight.new_zeros(2, bsz, self.rnn.hidden_size)


model = RNNModel(NTOKENS, args.emsize, args.nhid, args.dropout)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.3)


def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(data_source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    with torch.no_grad():
        for i in range(0, data_source.size(0) - 1, args.bptt):
            data, targets = get_batch(data_source, i)
            output, hidden = model(data, hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(data_source) - 1)


lr = args.lr
best_val_loss = None
for epoch in range(1, args.epochs + 1):
    epoch_start_time = time.time()
    model.train()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()

    val_loss = evaluate(val_data)
    print(
        f"| end of epoch {epoch:3d} | loss {total_loss / (batch + 1):.6f} | valid {val_loss:.4f} | ppl {math.exp(val_loss):.2f}"
    )
    if not best_val_loss or val_loss < best_val_loss:
        best_val_loss = val_loss
    else:
        lr /= 4.0
        for group in optimizer.param_groups:
            group["lr"] = lr
