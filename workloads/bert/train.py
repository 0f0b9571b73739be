"""Trains BERT: a checkpoint, the training steps, a second checkpoint, an evaluation.

With --deterministic, checkpoints also hold the position of the input pipeline and the records that it has read ahead. A resumed
job then repeats the uninterrupted one exactly. Otherwise it continues with the saved weights and reads records in a new order.
"""

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

from iotwin.common.files import make_folder

# Set before the import: else TensorFlow prints a greeting to stderr, and each rank reports the end of other ranks as errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2" if os.environ.get("RANK", "0") == "0" else "3")

import numpy as np
import tensorflow as tf

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError
from iotwin.common.mllog import MlLog
from iotwin.common.progress import note
from iotwin.datagen.layouts import BertLayout
from iotwin.workloads.bert.config import BertConfig
from iotwin.workloads.bert.data import INDEX, evaluation_batches, restore, state_of, training_batches
from iotwin.workloads.bert.device_clock import moment_after, wall_offset_ns
from iotwin.workloads.bert.model import Bert, Features
from iotwin.workloads.bert.optimizer import Adam
from iotwin.workloads.bert.profile import timeline_of
from iotwin.workloads.bert.shards import find_shards
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.program import Result, plain_configuration
from iotwin.workloads.common.steps import StepMeter
from iotwin.workloads.common.tf_ranks import TensorflowRanks, join_ranks
from iotwin.workloads.common.variant import PROFILER, TIMED, SleptSteps, parse_sleep
from iotwin.workloads.state.keeper import Keeper, ResumedJob
from iotwin.workloads.state.nested_state import Framework, NumpyGenerators, array_tensor, digest_of, flatten, unflatten

_TENSORFLOW = Framework({"tensorflow": tf.__version__}, flatten, unflatten, NumpyGenerators())
_EPOCH = 1  # epoch of every step, since the pipeline repeats the shards without end
_PARTS = ("model_forward_pass", "loss_tensor_calc", "model_backward_pass", "model_optim_step")


class BertJob:
    """One rank's share of a pretraining job."""

    def __init__(self, config: BertConfig, ranks: TensorflowRanks, log: MlLog) -> None:
        self._config, self._ranks, self._log = config, ranks, log
        tf.random.set_seed(config.seed)
        shards = find_shards(config.data, ranks.world_size)
        self._device = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
        self._parts = Parts(config.variant in TIMED, rank=ranks.rank)
        self._slept = SleptSteps(parse_sleep(config.sleep), config.seed, ranks.rank) if config.sleep is not None else None
        if self._slept is None:
            self._model = Bert(config.layers, config.hidden, config.heads, config.sequence)
            self._optimizer = Adam(self._model.trainable_variables, config.learning_rate, config.steps)
            # AutoGraph writes temporary files. It is not needed, since no condition and no loop depends on a tensor.
            self._compiled_step = tf.function(self._distributed_step, autograph=False)
            self._compiled_evaluation = tf.function(
                lambda batch: self._model.losses(batch, self._model.encode(batch)), autograph=False
            )
        make_folder(config.output)
        identity = {"job": "bert", "network": config.network, "seed": config.seed, "batch_size": config.batch_size}
        self.keeper = Keeper(config.state, config.output, ranks, identity | {"shards": len(shards)}, _TENSORFLOW)
        resumed = self.keeper.resume()
        self.resumed_exactly = self._goes_on_exactly(resumed) if resumed else None
        # If a resumed run cannot continue the order of records, a new seed keeps it from reading the same records again.
        self._data_seed = resumed.own[0]["data_seed"] if resumed and self.resumed_exactly else config.seed + self.keeper.steps
        self._batches: Iterator[Features] = iter(
            training_batches(
                shards, config.batch_size, ranks.rank, ranks.world_size, self._data_seed, config.deterministic, config.state.used
            )
        )
        if resumed:
            self._resume(resumed)
        self.loss: list[float] = []  # for each step, the sum of both cross-entropies
        self.times = StepMeter()
        log.point("seed", config.seed)
        log.point("global_batch_size", config.batch_size * ranks.world_size)
        log.point("max_sequence_length", config.sequence)

    def run(self) -> dict[str, float]:
        """Train, with a checkpoint before and after, then evaluate. Return the losses of the evaluation; {} if there is none."""
        done, steps = self.keeper.steps, self._config.steps
        if not done:
            self._checkpoint(0)
        while done < steps and not self.keeper.stops:
            with self._log.interval("block", first_step_num=done, step_count=steps - done):
                done, reason = self._train(done)
            if reason:
                self._keep(reason)
        if self.keeper.stops:
            return {}
        self._checkpoint(steps)
        return self._evaluate() if self._config.eval_steps and self._slept is None and self._ranks.rank == 0 else {}

    def _train(self, first: int) -> tuple[int, str | None]:
        """Train from step `first` to the end, or until a checkpoint is due or the job must stop.

        Returns (steps done, reason for the checkpoint or None if none is due).
        """
        for step in range(first, self._config.steps):
            self._timed_step(step)
            reason = self.keeper.due(_EPOCH)
            if reason or self.keeper.stops:
                return step + 1, reason
        return self._config.steps, None

    def _timed_step(self, step: int) -> None:
        asked_ns = time.monotonic_ns()
        batch = next(self._batches)
        arrived_ns = time.monotonic_ns()
        self._parts.log("load_batch_mem", asked_ns, arrived_ns - asked_ns, step_num=step)
        indices = batch.pop(INDEX, None)
        if self._slept:
            with self._parts.measure("all_compute", step_num=step):
                self._slept.next_step()
        else:
            if self._parts.enabled:  # copy the batch now to time the copy; otherwise the compiled step does it
                batch = self._load_to_device(batch, step)
            with self._profiled(step), self._parts.measure("all_compute", step_num=step):
                loss = self._compute(batch, step)
            if not math.isfinite(loss):
                raise IotwinError(f"the loss of step {step} is {loss}: training diverged; lower --learning-rate")
            self.loss.append(loss)
        done_ns = time.monotonic_ns()
        self._parts.log("step_end", asked_ns, done_ns - asked_ns, step_num=step)
        self.times.add(asked_ns, arrived_ns, done_ns)
        if indices is not None:
            own = indices.numpy().tolist()
            self.keeper.consumed(_EPOCH, own, self._ranks.gather(own))

    def _load_to_device(self, batch: Features, step: int) -> Features:
        with self._parts.measure("load_batch_gpu", step_num=step), tf.device(self._device):
            return {name: tf.identity(values) for name, values in batch.items()}

    def _compute(self, batch: Features, step: int) -> float:
        """Update the weights from `batch`, log the durations of the step's parts and return the loss."""
        offset_ns, begin_ns = wall_offset_ns(), time.monotonic_ns()
        loss, done_s = self._compiled_step(batch)
        if done_s:
            if self._device != "CPU:0":  # a GPU may still be working
                tf.test.experimental.sync_devices()
            done_ns = time.monotonic_ns()
            edges_ns = [begin_ns, *(round(float(seconds) * 1e9) - offset_ns for seconds in done_s), done_ns]
            for key, (start_ns, end_ns) in zip(_PARTS, pairwise(edges_ns), strict=True):
                self._parts.log(key, start_ns, end_ns - start_ns, step_num=step)
        with self._parts.measure("cum_loss_fn_calc", step_num=step):
            return float(loss)

    def _profiled(self, step: int) -> AbstractContextManager[None]:
        # No timeline of step 0, which would mostly show the compilation.
        wanted = self._config.variant == PROFILER and step and step % self._config.profile_every == 0
        return timeline_of(self._config.output / f"timeline-{step}.json") if wanted and self._ranks.rank == 0 else nullcontext()

    def _distributed_step(self, batch: Features) -> tuple[tf.Tensor, list[tf.Tensor]]:
        return self._ranks.strategy.run(self._step, args=(batch,))

    def _step(self, batch: Features) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Update the weights from `batch`. Return the loss averaged over the ranks, and the wall time in seconds at each part's
        end.

        The parts are the forward pass, the loss, and the backward pass with the sum over the ranks. The list of times is empty
        unless the variant logs parts.
        """
        weights = self._model.trainable_variables
        with tf.GradientTape() as tape:
            features = self._model.encode(batch)
            masked, following = self._model.losses(batch, features)
            loss = masked + following
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, weights)]
        *gradients, mean_loss = self._ranks.mean([*gradients, loss])
        self._optimizer.apply(gradients)
        timed = ([features], [loss], gradients) if self._parts.enabled else ()
        return mean_loss, [moment_after(tensors) for tensors in timed]

    def _checkpoint(self, step: int) -> None:
        if self._slept:
            return
        with self._log.interval("checkpoint", step_num=step):
            if self._ranks.rank == 0:
                checkpoint = tf.train.Checkpoint(model=self._model, optimizer=self._optimizer)
                checkpoint.write(str(self._config.output / f"model.ckpt-{step}"))

    def _goes_on_exactly(self, resumed: ResumedJob) -> bool:
        """Return True if the job can repeat the interrupted one exactly.

        It must be deterministic and have the same number of ranks, and the checkpoint must hold the input pipeline's position.
        """
        return self._config.deterministic and len(resumed.own) == 1 and resumed.own[0]["batches"] is not None

    def _resume(self, resumed: ResumedJob) -> None:
        if self.keeper.steps >= self._config.steps:
            raise IotwinError(f"the checkpoint ended step {self.keeper.steps}; give --steps a higher number to go on")
        for variable, value in zip(self._variables(), resumed.shared["variables"], strict=True):
            variable.assign(value)
        if self.resumed_exactly:
            restore(self._batches, resumed.own[0]["batches"], self._config.output)
        elif self._ranks.rank == 0:
            note(
                f"bert: resumed statistically: the records after step {self.keeper.steps} are others than those of an "
                "uninterrupted job; for an exact resume, run both jobs with --deterministic and as many ranks"
            )

    def _keep(self, reason: str) -> None:
        config, ranks = self._config, self._ranks
        taken = self.keeper.steps * config.batch_size * ranks.world_size
        with self._log.interval("checkpoint", step_num=self.keeper.steps):
            # The number of samples per epoch is 0, unknown: shards do not store how many records they hold.
            position = Position(config.seed, _EPOCH, taken, 0, config.batch_size, ranks.world_size)
            shared = {"variables": [np.asarray(variable.numpy()) for variable in self._variables()]}
            batches = state_of(self._batches, config.output) if config.deterministic else None
            self.keeper.keep(position, reason, shared, {"batches": batches, "data_seed": self._data_seed})

    def _variables(self) -> list[tf.Variable]:
        return [*self._model.trainable_variables, self._optimizer.step, *self._optimizer.first, *self._optimizer.second]

    def weights_sha256(self) -> str | None:
        """Return the SHA-256 of the weights; None for the variant sleep, which has no weights."""
        if self._slept:
            return None
        weights = enumerate(self._model.trainable_variables)
        return digest_of(array_tensor(str(index), np.asarray(variable.numpy())) for index, variable in weights)

    def _evaluate(self) -> dict[str, float]:
        with self._log.interval("eval", step_num=self._config.steps):
            batches = iter(evaluation_batches(self._config.data / BertLayout.EVALUATION_NAME, self._config.batch_size))
            found = [self._evaluation_step(step, batches) for step in range(self._config.eval_steps)]
        masked, following = (sum(losses) / len(found) for losses in zip(*found, strict=True))
        self._log.point("eval_accuracy", -masked, step_num=self._config.steps)
        return {"masked_word_loss": masked, "next_sentence_loss": following}

    def _evaluation_step(self, step: int, batches: Iterator[Features]) -> tuple[float, float]:
        with self._parts.measure("eval_step_end", step_num=step):
            with self._parts.measure("eval_load_batch_mem", step_num=step):
                batch = next(batches)
            with self._parts.measure("eval_compute", step_num=step):
                masked, following = self._compiled_evaluation(batch)
                return float(masked), float(following)

    def parameter_count(self) -> int:
        """Return the number of the model's weights; 0 for the variant sleep, which has none."""
        return 0 if self._slept else sum(int(tf.size(weight)) for weight in self._model.trainable_variables)


def train(config: BertConfig) -> Result | None:
    """Run the job that `config` describes. Return its result on rank 0, None on other ranks.

    Raises IotwinError if data or output are unusable, or if memory runs out.
    """
    if config.threads:
        tf.config.threading.set_intra_op_parallelism_threads(config.threads)
    if config.deterministic:
        tf.config.experimental.enable_op_determinism()
    ranks = join_ranks()
    log = MlLog(sys.stdout if ranks.rank == 0 else None)
    try:
        with log.interval("init"):
            job = BertJob(config, ranks, log)
        begin = time.perf_counter()
        with log.interval("run"), job.keeper:
            evaluation = job.run()
        run_s = time.perf_counter() - begin
        ranks.leave()
    except tf.errors.OpError as error:
        raise IotwinError(_explain(error)) from None
    if ranks.rank:
        return None
    tenth = max(1, config.steps // 10)
    losses = {"first_loss": sum(job.loss[:tenth]) / tenth, "last_loss": sum(job.loss[-tenth:]) / tenth} if job.loss else {}
    return {
        "steps": len(job.times),
        **losses,
        "evaluation": evaluation,
        "run_seconds": run_s,
        **job.times.summary(),
        **job.keeper.result(),
        "resumed_exactly": job.resumed_exactly,
        "weights_sha256": job.weights_sha256(),
        "parameters": job.parameter_count(),
        "world_size": ranks.world_size,
        "device": "gpu" if tf.config.list_physical_devices("GPU") else "cpu",
        "tensorflow": tf.__version__,
        "configuration": plain_configuration(config),
    }


def _explain(error: tf.errors.OpError) -> str:
    """Return TensorFlow's error in one line, with advice."""
    lines = [line for line in error.message.strip().splitlines() if line and not line[0].isspace()]
    if "Graph execution error:" in lines[:1]:  # the next lines show where the operation was defined, the others the cause
        lines = [line for line in lines[1:] if not line.startswith("Detected at node ")]
    line = lines[0] if lines else type(error).__name__
    match error:
        case tf.errors.UnavailableError() | tf.errors.AbortedError():
            return f"another rank cannot be reached ({line}); read what the other ranks printed"
        case tf.errors.DataLossError():
            return f"a shard is damaged ({line}); generate the data set again"
        case tf.errors.ResourceExhaustedError():
            return f"out of memory ({line}); make the model or the batch smaller"
        case tf.errors.InvalidArgumentError():
            return f"a record cannot be used ({line}); generate the data set again"
    return line
