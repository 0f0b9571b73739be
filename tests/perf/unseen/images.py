"""A folder of images, validation from another folder, fresh loaders for each pass or the same ones all along (--persistent)."""

import sys
from pathlib import Path

import numpy as np
from job_parts import Loader, batches, make_files, read_file, save


def main(folder: Path, seed: int, persistent: bool, suffix: str = ".jpg", epochs: int = 4) -> None:
    rng, sizes = np.random.default_rng(seed), np.random.default_rng(1)
    train = make_files(folder / "train", [f"s{i:03}{suffix}" for i in range(160)], sizes.integers(60_000, 140_000, 160).tolist())
    val = make_files(folder / "val", [f"v{i:03}{suffix}" for i in range(48)], sizes.integers(60_000, 140_000, 48).tolist())
    if suffix == ".pt":
        read_file(make_files(folder / "pretrained", ["model.safetensors"], [20_000_000])[0])
    out = folder / f"out{seed}"
    out.mkdir(exist_ok=True)
    kept = {}
    for epoch in range(epochs):
        for name, files, size, compute_s in (("train", train, 8, 0.05), ("val", val, 8, 0.02)):
            loader = kept.get(name) or Loader(lambda indices, files=files: [read_file(files[i]) for i in indices])
            order = rng.permutation(len(files)) if name == "train" else np.arange(len(files))
            for _ in loader.epoch(batches(order.tolist(), size), compute_s):
                pass
            if persistent:
                kept[name] = loader
            else:
                loader.close()
        save(out / f"epoch_{epoch}.pt", 6_000_000)
    for loader in kept.values():
        loader.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), "--persistent" in sys.argv, ".pt" if "--pt" in sys.argv else ".jpg")
