"""Reader of CIFAR-100, the version for Python, with its 100 fine classes."""

from components.prepare.cifar import Form, listing
from components.prepare.published import Release, Size
from components.prepare.readers import Listing
from components.prepare.tree import Tree

LAYOUT = "cifar-100-python.tar.gz or its folder cifar-100-python with train, test and meta"
PUBLISHED: list[Release] = [{"train": Size(100, 50_000), "test": Size(100, 10_000)}]
FORM = Form(
    folder="cifar-100-python",
    meta="meta",
    names="fine_label_names",
    labels="fine_labels",
    batches={"train": ["train"], "test": ["test"]},
)


def read(tree: Tree) -> Listing:
    """Splits train and test, in the order of their rows, as in torchvision's CIFAR100; images become PNG files.

    Raises ValueError for files that are missing, damaged, or pickles of something else.
    """
    return listing(tree, FORM, LAYOUT)
