"""A Keras model trained with TensorFlow and Horovod, on one process or many.

allranks run --nprocs 2 examples/jobs/horovod_tensorflow.py

Horovod knows Keras 2 alone. TensorFlow 2.16 and later bring Keras 3: install tf_keras there. allranks
sets TF_USE_LEGACY_KERAS=1 then; do so yourself where you start the script by other means.
"""

import argparse

import horovod.tensorflow.keras as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch", type=int, default=64, help="samples in a step of all processes")
parser.add_argument("--rate", type=float, default=0.02, help="for the batch of all processes")
parser.add_argument("--warmup", type=int, default=2, help="epochs")
options = parser.parse_args()

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[hvd.local_rank() % len(gpus)]
    tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_visible_devices(gpu, "GPU")

keras = tf.keras
# The same weights everywhere: the callback below broadcasts them only after the first batch.
keras.utils.set_random_seed(0)
layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((8,)), *layers])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(options.rate, momentum=0.9))
model.compile(optimizer=optimizer, loss="mse")

x = tf.random.stateless_uniform((1024, 8), seed=(0, 0))
y = tf.reduce_sum(x, axis=1, keepdims=True)
# Of each batch of all processes, this one's part.
part = options.batch // hvd.size()
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(part, drop_remainder=True)
data = data.shard(hvd.size(), hvd.rank())


class Losses(keras.callbacks.Callback):
    """Prints the loss of an epoch; MetricAverageCallback has averaged it over the processes."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if hvd.rank() == 0:
            print(f"loss {epoch} {logs['loss']:.6f}", flush=True)


warmup = hvd.callbacks.LearningRateWarmupCallback(
    initial_lr=options.rate,
    warmup_epochs=options.warmup,
    momentum_correction=False,  # Keras keeps the momentum as a plain number, which cannot be scaled
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    *([warmup] if options.warmup else []),
    Losses(),
]
model.fit(data, epochs=options.epochs, callbacks=callbacks, verbose=0)
if hvd.rank() == 0:
    version = getattr(keras, "__version__", "2")
    print(f"{hvd.size()} processes of Horovod, Keras {version}")
