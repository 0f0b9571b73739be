"""Hugging Face's Trainer: a checkpoint every two steps, resumed by resume_from_checkpoint."""

import argparse
import os

import torch
from torch import nn
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.dropout(self.embedding(input_ids)))
        loss = None if labels is None else nn.functional.cross_entropy(logits.view(-1, 3), labels.view(-1))
        return {"loss": loss, "logits": logits}


class Words(torch.utils.data.Dataset):
    def __init__(self, n=40):
        generator = torch.Generator().manual_seed(2)
        self.ids = torch.randint(30, (n, 6), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index] % 3}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    set_seed(11)
    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=args.epochs, per_device_train_batch_size=8, save_steps=2, save_total_limit=2,
        logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, dataloader_num_workers=args.workers, seed=11,
        learning_rate=0.01,
    )  # fmt: skip
    trainer = Trainer(model=Tagger(), args=arguments, train_dataset=Words())
    last = get_last_checkpoint("out") if os.path.isdir("out") else None
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
