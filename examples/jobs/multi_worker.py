"""A Keras model under MultiWorkerMirroredStrategy; the workers read TF_CONFIG.

allranks run --nprocs 2 examples/jobs/multi_worker.py
"""

import tensorflow as tf

# First of all: collective operations must be set up before anything else runs.
gpus = tf.config.list_physical_devices("GPU")
kind = tf.distribute.experimental.CommunicationImplementation
options = tf.distribute.experimental.CommunicationOptions(
    implementation=kind.NCCL if gpus else kind.RING
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss="mse")

x = tf.random.stateless_uniform((1024, 8), seed=(0, 0))
dataset = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1, keepdims=True)))
dataset = dataset.batch(32 * strategy.num_replicas_in_sync)
task = strategy.cluster_resolver.task_id or 0
model.fit(dataset, epochs=2, verbose=2 if task == 0 else 0)
