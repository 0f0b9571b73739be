"""BERT pretraining from TFRecord shards: the language-model training job, on CPUs or GPUs."""
