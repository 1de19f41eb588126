"""What a device can do at best, after its maker's data sheet, and how much of that training gets.

Data sheets, all of the SXM form, dense and not sparse figures:
V100 https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf,
A100 https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf,
H100 https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306, H200 https://www.nvidia.com/en-us/data-center/h200/.
"""

from typing import Literal, NamedTuple

GIB = 2**30

TENSOR_UTILISATION = 0.25
"""Share of the bf16 peak that training reaches, an assumption until it is measured. I-JEPA's published hours imply at least 0.22 and
0.16 on A100s (docs/preflight.md), data loading included; a run with a loader that keeps up should be faster than predicted."""
PLAIN_UTILISATION = {"cpu": 0.85, "gpu": 0.7}
"""Share of the fp32 peak. The CPU's was measured for ViT-B/16 and ViT-S/16 by benchmarks/preflight.py; the GPU's, without tensor cores
since nobody allows TF32 here, is an assumption."""


class Device(NamedTuple):
    """`bf16` and `fp32` in FLOP/s at the peak; `bf16` is 0 where no unit computes it. `memory` in bytes, `bandwidth` in bytes/s."""

    name: str
    kind: Literal["gpu", "cpu"]
    bf16: float
    fp32: float
    memory: float
    bandwidth: float

    def rate(self, precision: str, utilisation: float | None = None) -> float:
        """FLOP/s that training gets in `precision`, at the peak times `utilisation` or what is usual."""
        if precision == "bf16" and self.bf16:
            return self.bf16 * (
                utilisation or TENSOR_UTILISATION
            )  # of a CPU, too: its bf16 units outrun its memory as well
        return self.fp32 * (utilisation or PLAIN_UTILISATION[self.kind])


DEVICES = {
    device.name: device
    for device in (
        Device("v100", "gpu", 0.0, 15.7e12, 32 * GIB, 0.9e12),
        Device("a100-40", "gpu", 312e12, 19.5e12, 40 * GIB, 1.555e12),
        Device("a100-80", "gpu", 312e12, 19.5e12, 80 * GIB, 2.039e12),
        Device("h100", "gpu", 989e12, 67e12, 80 * GIB, 3.35e12),
        Device("h200", "gpu", 989e12, 67e12, 141e9, 4.8e12),
    )
}
"""By the name that `--device` takes. A data sheet's 80 GB of HBM are 80 GiB less what the driver keeps, which `memory.RESERVE` covers."""


def device(name: str) -> Device:
    """The device of that name. Raises ValueError for another."""
    if name not in DEVICES:
        raise ValueError(
            f"device is {name!r}; it must be one of {', '.join([*DEVICES, 'cpu'])}, where cpu is this machine's"
        )
    return DEVICES[name]
