"""Keras on TensorFlow: the loader as a tf.data.Dataset.

pip install tensorflow
python examples/keras_tfdata.py --data /data/photos
"""

from __future__ import annotations

import argparse

import headrace as hr
import keras


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    side = args.image_size
    loader = hr.Loader(args.data, args.batch_size, hr.transforms.imagenet_train(side), output="numpy", seed=0)
    batches = loader.to_tf_dataset()  # one epoch of Keras is one pass of the loader
    model = keras.Sequential(
        [
            keras.Input((side, side, 3)),
            keras.layers.Rescaling(1 / 127.5, offset=-1),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(64, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(len(loader.classes)),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(batches, epochs=args.epochs, verbose=2)
    print(f"{args.epochs} epochs, loss {history.history['loss'][-1]:.3f}, {loader.stats().batches} batches")


if __name__ == "__main__":
    main()
