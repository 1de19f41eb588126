"""From JPEG and PNG bytes to pixels as a tensor, by torchvision where it gives what Pillow gives, in less time."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from components.images import store
from components.images.header import APP1, SCAN, segments

ORIENTATION = 0x0112


def decode(data: bytes | memoryview) -> Tensor:
    """uint8 [3, H, W] of JPEG or PNG bytes, RGB, turned as EXIF says: the pixels of `store.decode`, to the bit.

    The channels lie together in memory, as decoders write them and resizing reads them fastest. Raises ValueError, naming no file.
    """
    copied = bytearray(data)  # a memory map is read-only, which tensors don't know
    if _is_upright_jpeg(copied):
        try:
            pixels: Tensor = decode_jpeg(torch.frombuffer(copied, dtype=torch.uint8), ImageReadMode.UNCHANGED)
        except RuntimeError:  # Pillow has the last word, and says what is wrong
            pass
        else:
            if len(pixels) in (1, 3):  # 4 are CMYK
                return pixels.expand(3, -1, -1)
    return of_picture(store.decode(data))


def _is_upright_jpeg(data: bytearray) -> bool:
    """Whether it is a JPEG that nothing turns. Pillow reads EXIF and XMP where there are any, for torchvision reads them otherwise."""
    for marker, _ in segments(data):
        if marker == SCAN:
            return True
        if marker == APP1:
            try:
                return store.opened(data).getexif().get(ORIENTATION) not in range(2, 9)
            except store.BROKEN:
                return False
    return False


def of_picture(picture: Image.Image) -> Tensor:
    """uint8 [3, H, W] of an RGB picture."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def pixels(images: store.Store, index: int) -> Tensor:
    """Picture `index` as uint8 [3, H, W].

    Raises ValueError, naming dataset, split, row and path, when its bytes are not those that were stored or can't be decoded.
    """
    data = images.view(index)
    try:
        return decode(data)
    except ValueError as error:
        raise images.undecodable(index, error) from error
