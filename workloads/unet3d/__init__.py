"""3-D U-Net on KiTS19-shaped cases: the image-segmentation training job, on CPUs or GPUs."""
