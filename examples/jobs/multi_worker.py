"""A Keras model under MultiWorkerMirroredStrategy, on one worker or many.

allranks run --nprocs 2 examples/jobs/multi_worker.py
allranks submit --nodes 2 --gpus-per-node 4 --time 10m examples/jobs/multi_worker.py

With ``--resolver`` the strategy is made from TensorFlow's own SlurmClusterResolver instead.
"""

import argparse

import tensorflow as tf

import allranks

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch", type=int, default=64, help="samples in a step of all workers")
parser.add_argument("--samples", type=int, default=1024)
parser.add_argument("--resolver", action="store_true")
parser.add_argument("--backup", metavar="FOLDER", help="go on from here after an interruption")
parser.add_argument("--save", metavar="FILE")
options = parser.parse_args()

# First of all: the workers must be connected before TensorFlow does anything else.
if options.resolver:
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver()
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
else:
    strategy = allranks.tensorflow.strategy()
main = allranks.world().is_main

keras = tf.keras
keras.utils.set_random_seed(0)
with strategy.scope():
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.9), loss="mse")

x = tf.random.stateless_uniform((options.samples, 8), seed=(0, 0))
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
# A batch is that of all workers together: each takes its part. A smaller last batch would give the
# workers unequal parts with equal weights, so it is left out.
data = data.batch(options.batch, drop_remainder=True)
sharing = tf.data.Options()
sharing.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
data = data.with_options(sharing)


class Losses(keras.callbacks.Callback):
    """Prints the loss of an epoch, averaged over all workers."""

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        if main:
            print(f"loss {epoch} {logs['loss']:.6f}", flush=True)


callbacks = [Losses()]
if options.backup:
    callbacks.append(allranks.tensorflow.backup(options.backup))
model.fit(data, epochs=options.epochs, callbacks=callbacks, verbose=0)
if options.save:
    allranks.tensorflow.save(model, options.save)
if main:
    print(f"{strategy.num_replicas_in_sync} workers of {type(strategy).__name__}")
