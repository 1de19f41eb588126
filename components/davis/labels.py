"""Between object ids at full resolution and soft labels on the token grid."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from components.davis.palette import Ids
from components.davis.view import Profile


def soften(ids_HW: Ids, objects: int, grid: tuple[int, int], profile: Profile) -> Tensor:
    """The first frame's labels [K,h,w], K = objects + 1 with background as 0: summing to 1 over K at every token.

    `paper` takes the id of the nearest pixel, so that a small object can vanish; `clean` the share of the token's area.
    """
    if profile == "paper":
        nearest = Image.fromarray(ids_HW).resize((grid[1], grid[0]), Image.Resampling.NEAREST)
        return _one_hot(np.array(nearest), objects)
    return functional.adaptive_avg_pool2d(_one_hot(ids_HW, objects), grid)


def harden(labels_Khw: Tensor, size: tuple[int, int], patch: int, profile: Profile) -> Ids:
    """The object ids [H,W] of a frame of `size`: labels upsampled bilinearly, then the strongest (the lowest id of equals).

    `paper` decides at the resolution the encoder saw, each object's map first stretched to 0..1, and resizes the ids.
    """
    if profile == "clean":
        maps_KHW = functional.interpolate(labels_Khw[None], size, mode="bilinear", align_corners=False)[0]
        return _strongest(maps_KHW)
    maps_KHW = functional.interpolate(labels_Khw[None], scale_factor=patch, mode="bilinear", align_corners=False)[0]
    lowest, highest = maps_KHW.amin((1, 2), keepdim=True), maps_KHW.amax((1, 2), keepdim=True)
    stretch = highest > lowest  # DINO divides 0 by 0 here when an object fills the frame
    maps_KHW = torch.where(stretch, (maps_KHW - lowest) / torch.where(stretch, highest - lowest, 1), maps_KHW)
    return np.array(Image.fromarray(_strongest(maps_KHW)).resize((size[1], size[0]), Image.Resampling.NEAREST))


def _strongest(maps_KHW: Tensor) -> Ids:
    return maps_KHW.max(0).indices.byte().cpu().numpy()  # the same as argmax(0), which takes 30 times as long on a CPU


def _one_hot(ids_HW: Ids, objects: int) -> Tensor:
    return (torch.from_numpy(ids_HW) == torch.arange(objects + 1)[:, None, None]).float()
