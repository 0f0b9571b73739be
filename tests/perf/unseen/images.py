"""A folder of images, validation from another folder, fresh loaders for each pass or the same ones all along (--persistent)."""

from pathlib import Path

import numpy as np
from command_line import JobOptions
from job_parts import Loader, batches, launch, make_files, read_file, save


def _made(job: JobOptions) -> list[list[Path]]:
    sizes, sets, suffix = np.random.default_rng(1), [], ".pt" if job.pt else ".jpg"
    for name, first, usual in (("train", "s", 160), ("val", "v", 48)):
        names = [f"{first}{i:03}{suffix}" for i in range(job.samples(usual))]
        sets.append(make_files(job.data(name), names, sizes.integers(60_000, 140_000, len(names)).tolist()))
    return [*sets, make_files(job.folder / "pretrained", ["model.safetensors"], [20_000_000]) if job.pt else []]


def main(job: JobOptions, sets: list[list[Path]]) -> None:
    train, val, pretrained = sets
    for path in pretrained:
        read_file(path)
    rng, kept = np.random.default_rng(job.seed), {}
    passes = (("train", train, job.batch(8), job.step_s(0.05)), ("val", val, 8, job.validation_s(0.02)))
    for epoch in range(job.epochs(4)):
        for name, files, size, compute_s in passes:
            loader = kept.get(name) or Loader(job, lambda indices, files=files: [read_file(files[i]) for i in indices])
            order = rng.permutation(len(files)) if name == "train" else np.arange(len(files))
            for _ in loader.epoch(batches(job, order.tolist(), size), compute_s):
                pass
            if job.persistent:
                kept[name] = loader
            else:
                loader.close()
        save(job, f"epoch_{epoch}.pt", 6_000_000)
    for loader in kept.values():
        loader.close()


if __name__ == "__main__":
    launch(_made, main, "persistent", "pt")
