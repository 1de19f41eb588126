"""Reader of CIFAR-10, the version for Python."""

from components.prepare.cifar import Form, listing
from components.prepare.published import Release, Size
from components.prepare.readers import Listing
from components.prepare.tree import Tree

LAYOUT = "cifar-10-python.tar.gz or its folder cifar-10-batches-py with data_batch_1 to data_batch_5, test_batch and batches.meta"
PUBLISHED: list[Release] = [{"train": Size(10, 50_000), "test": Size(10, 10_000)}]
FORM = Form(
    folder="cifar-10-batches-py",
    meta="batches.meta",
    names="label_names",
    labels="labels",
    batches={"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]},
)


def read(tree: Tree) -> Listing:
    """Splits train and test, in the order of the files and of their rows, as in torchvision's CIFAR10; images become PNG files.

    Raises ValueError for files that are missing, damaged, or pickles of something else.
    """
    return listing(tree, FORM, LAYOUT)
