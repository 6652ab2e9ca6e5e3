"""Keras 3 on torch: model.fit with a checkpoint per epoch, 40 updates.

Keras's own Adam (no torch.optim.Optimizer) takes much of a step.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((128,))]
    + [keras.layers.Dense(256, activation="relu") for _ in range(4)]
    + [keras.layers.Dense(4)]
)
model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x = np.random.default_rng(0).normal(size=(640, 128)).astype("float32")
saving = keras.callbacks.ModelCheckpoint("model.weights.h5", save_weights_only=True)
past = model.fit(x, np.arange(640) % 4, batch_size=32, epochs=2, verbose=0, callbacks=[saving])
print("updates", int(model.optimizer.iterations.numpy()))
