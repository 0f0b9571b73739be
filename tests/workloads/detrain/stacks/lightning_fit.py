"""Lightning: ModelCheckpoint every two steps, resumed by ckpt_path="last"."""

import argparse
import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Regressor(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--stateful", action="store_true", help="load by torchdata's StatefulDataLoader")
    args = parser.parse_args()
    torch.set_num_threads(1)
    L.seed_everything(7, workers=True, verbose=False)
    x = torch.randn(48, 4)
    y = x.sum(1, keepdim=True)
    loader = DataLoader
    if args.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader as loader
    train = loader(TensorDataset(x[:40], y[:40]), batch_size=8, shuffle=True, num_workers=args.workers)
    valid = DataLoader(TensorDataset(x[40:], y[40:]), batch_size=8)
    checkpoint = ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=2, save_last=True, save_top_k=1)
    trainer = L.Trainer(
        max_epochs=args.epochs, accelerator="cpu", devices=1, callbacks=[checkpoint], logger=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Regressor(), train, valid, ckpt_path="last")
    print(f"trained {trainer.global_step} steps")


if __name__ == "__main__":
    main()
