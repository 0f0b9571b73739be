"""Images on two ranks (gloo), validation from another folder; or --sharded: distributed checkpoints of both, three kept."""

import os
import shutil
import time
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from command_line import command_line
from job_parts import make_files, read_file
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch_parts import save


class Images(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        read_file(self._paths[index])
        return torch.zeros(1000)


def _rank(rank: int, job: Namespace, training: list[Path], validation: list[Path]) -> None:
    folder, seed, sharded = job.folder, job.seed, job.sharded
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{seed}{sharded}", rank=rank, world_size=2)
    gradient = torch.zeros(10_000)
    out, kept = folder / f"out{seed}", []
    for epoch in range(4):
        for paths, shuffle, scale, compute_s in ((training, True, job.scale, 0.06), (validation, False, 1, 0.03)):
            sampler = DistributedSampler(Images(paths), shuffle=shuffle, seed=seed)
            sampler.set_epoch(epoch)
            loader = DataLoader(Images(paths), batch_size=4 * scale, sampler=sampler, num_workers=job.workers)
            for step, _ in enumerate(loader, 1):
                time.sleep(compute_s * scale)
                dist.all_reduce(gradient)
                if sharded and shuffle and step % 12 == 0:
                    state = {"model": torch.zeros(1_000_000 + rank), f"own{rank}": torch.zeros(1_500_000)}
                    kept.append((target := out / f"step_{epoch}_{step}", dcp.async_save(state, checkpoint_id=target)))
                    kept[-1][1].result()
                    if rank == 0 and len(kept) > 3:
                        shutil.rmtree(kept[-4][0])
        if not sharded and rank == 0:
            save(out / f"epoch_{epoch}.pt", 6_000_000)
    dist.destroy_process_group()


def main(job: Namespace) -> None:
    folder = job.folder
    sizes = np.random.default_rng(1)
    training = make_files(folder / "train2", [f"s{i:03}.jpg" for i in range(192)], sizes.integers(60_000, 140_000, 192).tolist())
    validation = make_files(folder / "val2", [f"v{i:03}.jpg" for i in range(64)], sizes.integers(60_000, 140_000, 64).tolist())
    (folder / f"out{job.seed}").mkdir(exist_ok=True)
    (folder / f"store{job.seed}{job.sharded}").unlink(missing_ok=True)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    mp.start_processes(_rank, (job, training, validation), nprocs=2, start_method="fork")


if __name__ == "__main__":
    main(command_line("sharded"))
