"""Text classification over an iterable dataset: lines of several files, a shuffle buffer, files divided among workers."""

import argparse
import os
import random
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

WORDS = {0: ["rain", "snow", "wind", "cold"], 1: ["sun", "beach", "warm", "sand"]}
COMMON = ["the", "a", "was", "very", "day", "and"]
VOCABULARY = {word: i + 1 for i, word in enumerate(COMMON + WORDS[0] + WORDS[1])}


def write_text(folder, files=4, lines=18):
    os.makedirs(folder, exist_ok=True)
    for f in range(files):
        rng = random.Random(f)
        path = os.path.join(folder, f"part-{f}.txt")
        with open(path + ".tmp", "w") as out:
            for _ in range(lines):
                label = rng.randrange(2)
                words = rng.choices(COMMON, k=rng.randint(2, 6)) + rng.choices(WORDS[label], k=2)
                rng.shuffle(words)
                out.write(f"{label}\t{' '.join(words)}\n")
        os.rename(path + ".tmp", path)


class TextLines(IterableDataset):
    def __init__(self, folder, buffer_size=16):
        self.files = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".txt")]
        self.buffer_size = buffer_size

    def lines(self):
        info = get_worker_info()
        files = self.files if info is None else self.files[info.id :: info.num_workers]
        for path in files:
            with open(path) as file:
                for line in file:
                    label, text = line.rstrip("\n").split("\t")
                    yield [VOCABULARY[word] for word in text.split()], int(label)

    def __iter__(self):
        buffer = []
        for item in self.lines():
            buffer.append(item)
            if len(buffer) >= self.buffer_size:
                yield buffer.pop(random.randrange(len(buffer)))
        random.shuffle(buffer)
        yield from buffer


def pad(batch):
    texts, labels = zip(*batch)
    longest = max(len(text) for text in texts)
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    return ids, torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY) + 1, 16, padding_idx=0)
        self.gru = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(48, 2))

    def forward(self, ids):
        out, _ = self.gru(self.embedding(ids))
        return self.head(out.max(dim=1).values)


def accuracy(logits, labels):
    return (logits.argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "toy_text"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    if not os.path.isdir(args.data) or len([n for n in os.listdir(args.data) if n.endswith(".txt")]) < 4:
        write_text(args.data)

    loader = DataLoader(TextLines(args.data), batch_size=args.batch_size, num_workers=args.workers, collate_fn=pad)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    log = {"loss": [], "acc": []}
    step = 0
    for epoch in range(args.epochs):
        batch_losses, batch_accs = [], []
        for ids, labels in loader:
            model.train()
            optimizer.zero_grad()
            logits = model(ids)
            loss = criterion(logits, labels)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            step += 1
            batch_losses.append(loss.item())
            batch_accs.append(accuracy(logits, labels))
        log["loss"].append(sum(batch_losses) / len(batch_losses))
        log["acc"].append(sum(batch_accs) / len(batch_accs))
        print(f"epoch={epoch} step={step} loss={log['loss'][-1]:.6f} acc={log['acc'][-1]:.3f}")


if __name__ == "__main__":
    main()
