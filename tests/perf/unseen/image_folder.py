"""A folder of images for each class, as torchvision's ImageFolder reads them; the same loaders train and validate all along."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from job_parts import make_images
from PIL import Image
from torch.utils.data import Dataset
from torch_parts import launch, loader, save, train

_CLASSES, _TRAINING, _VALIDATION, _EPOCHS = 8, 40, 8, 4


class ImageFolder(Dataset):
    def __init__(self, folder: Path) -> None:
        classes = sorted(entry for entry in folder.iterdir() if entry.is_dir())
        self._samples = [(path, label) for label, entry in enumerate(classes) for path in sorted(entry.iterdir())]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> torch.Tensor:
        path, label = self._samples[index]
        with path.open("rb") as file:
            image = Image.open(file).convert("RGB").resize((128, 128))
        return torch.from_numpy(np.asarray(image).copy()).float() + label


def _made(job: JobOptions) -> list[Path]:
    folders = [job.data("image_folder") / name for name in ("train", "val")]
    for folder, usual in zip(folders, (_TRAINING, _VALIDATION), strict=True):
        make_images(
            [folder / f"class{c}" / f"{i:04}.jpg" for c in range(_CLASSES) for i in range(job.samples(usual))], (192, 192, 3)
        )
    return folders


def main(job: JobOptions, folders: list[Path]) -> None:
    torch.manual_seed(job.seed)
    training, validation = map(ImageFolder, folders)
    trained = loader(job, training, job.batch(8), shuffle=True, persistent_workers=True)
    validated = loader(job, validation, 8, persistent_workers=True)
    for epoch in range(job.epochs(_EPOCHS)):
        for batches, compute_s in ((trained, job.step_s(0.06)), (validated, job.validation_s(0.03))):
            if job.ranks > 1:
                batches.sampler.set_epoch(epoch)
            for _ in train(batches, compute_s):
                pass
        save(job.out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
