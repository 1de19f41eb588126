"""What a whole training step costs on one device, for one size of model: the first table of `benchmarks/gpu.py`.

A step is context encoder, target encoder, predictor, loss, backward pass, AdamW and moving average, ours and the textbook's as
`benchmarks/step.py` has them. Compiled, each transformer layer of either side is, as `scale.compile` does it, for any number of tokens.
No activations are computed a second time.
"""

import gc
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch._dynamo
from step import assert_equal, ours, peer_of, textbook, trainer
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from components.mim import masks
from components.mim.encoder import compile_each
from components.mim.objectives import Targets
from components.mim.positions import Noise
from components.pretrain.batches import Batch
from components.pretrain.loop import Trainer

WARM, FEWEST = 2, 3
"""Turns before the clock runs, and fewest that are timed, however long they take."""

T = TypeVar("T")
Row = dict[str, Any]


class Variant(NamedTuple):
    side: str
    noise: bool
    compiled: bool


OURS, QUIET, TEXTBOOK = Variant("ours", True, False), Variant("ours", False, False), Variant("textbook", True, False)
VARIANTS = [Variant(side, noise, compiled) for compiled in (False, True) for side, noise, _ in (OURS, QUIET, TEXTBOOK)]
RATIOS = {
    "textbook / ours": (TEXTBOOK, OURS),
    "textbook / ours, both compiled": (TEXTBOOK._replace(compiled=True), OURS._replace(compiled=True)),
    "noise on / noise off": (OURS, QUIET),
    "noise on / noise off, compiled": (OURS._replace(compiled=True), QUIET._replace(compiled=True)),
    "ours / ours compiled": (OURS, OURS._replace(compiled=True)),
}


class How(NamedTuple):
    """`backend` is torch.compile's; `turns` are timed at most; `peak` is the device's FLOP/s at best, None where nobody knows."""

    device: str
    precision: str
    backend: str
    turns: int
    peak: float | None


class Layers:
    """The transformer layers of some modules, compiled in place as `scale.compile` does, or called as they were."""

    def __init__(self, modules: Sequence[Any], backend: str) -> None:
        self.layers = [layer for module in modules for layer in module.blocks]
        compile_each(self.layers, backend)
        self.calls = [layer._compiled_call_impl for layer in self.layers]
        self.use(False)

    def use(self, compiled: bool) -> None:
        for layer, call in zip(self.layers, self.calls, strict=True):
            layer._compiled_call_impl = call if compiled else None


class Steps:
    """Every variant's step, from equal weights on the same images, masks and noise. Those of one side train the same weights."""

    def __init__(self, shape: dict[str, Any], batch: int, how: How) -> None:
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # rather than going on uncompiled without a word
        torch.compiler.reset()  # each size has all of torch's allowance of recompilations for itself
        release()
        self.how, self.one = how, trainer(shape, batch, how.device, how.precision)
        if how.device == "cuda":
            batches: Any = self.one.batches
            batches.batch = Batch(batches.batch.pixels.pin_memory(), batches.batch.places)  # as a loader gives them
        self.peer = peer_of(self.one)
        model, peer = self.one.model, self.peer
        self.layers = {
            "ours": Layers((model.encoder, self.one.target, model.predictor), how.backend),
            "textbook": Layers((peer.encoder, peer.target, peer.predictor), how.backend),
        }

    def step(self, variant: Variant) -> Callable[[], float]:
        layers, std = self.layers[variant.side], 0.25 if variant.noise else 0.0
        step = ours(self.one, std) if variant.side == "ours" else textbook(self.one, self.peer, std)

        def run() -> float:
            layers.use(variant.compiled)
            try:
                return step()
            finally:
                layers.use(False)

        return run

    def assert_equal(self, compiled: bool) -> tuple[float, float]:
        """Three steps of each side, with noise, without and with it again, lose the same. Returns the last losses."""
        mine = [Variant("ours", noise, compiled) for noise in (True, False, True)]
        pairs = [(self.step(variant), self.step(variant._replace(side="textbook"))) for variant in mine]
        return assert_equal(self.one, self.peer, pairs, self.how.precision)

    def peak_mib(self, variant: Variant) -> float | None:
        """Of all that this side alone holds on a GPU. On a CPU `benchmarks/step.py` takes it, in a process for each variant."""
        step = self.step(variant)
        if self.how.device == "cpu":
            return None
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        step()
        other = "textbook" if variant.side == "ours" else "ours"
        return (torch.cuda.max_memory_allocated() - self.held(other)) / 2**20

    def held(self, side: str) -> int:
        """Bytes of one side's weights, gradients and moments on the device, which are there in the other's steps as well."""
        one, peer = self.one, self.peer
        parts = (one.model, one.target) if side == "ours" else (peer.encoder, peer.predictor, peer.target)
        weights = [weight for part in parts if part for weight in part.parameters()]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        adamw = one.adamw if side == "ours" else peer.adamw
        kept = [value for state in adamw.state.values() for value in state.values() if isinstance(value, Tensor)]
        return sum(tensor.nbytes for tensor in (*weights, *gradients, *kept) if tensor.device == weights[0].device)


def measure(size: str, shape: dict[str, Any], batch: int, how: How, until: float) -> dict[str, Any]:
    """One size's rows, ratios and what could not be measured; timed until the monotonic clock says `until`."""
    steps, said = Steps(shape, batch, how), list[str]()
    flops = {noise: model_flops(steps.one, noise) / batch for noise in (True, False)}
    losses, compile_s = {"plain": steps.assert_equal(False)}, 0.0
    variants = [variant for variant in VARIANTS if not variant.compiled]
    if time.monotonic() >= until:
        said.append(f"{size}: compiled steps skipped, its time was over")
    else:
        start = time.monotonic()
        try:
            losses["compiled"] = steps.assert_equal(True)
            variants = VARIANTS
        except (AssertionError, torch.OutOfMemoryError):
            raise
        except (
            Exception
        ) as error:  # torch.compile fails in many ways; the other rows are worth having, and the exit status tells
            traceback.print_exc()
            said.append(f"{size}: compiled steps FAILED: {type(error).__name__}: {str(error).splitlines()[0]}")
        compile_s = time.monotonic() - start
    milliseconds = turns([steps.step(variant) for variant in variants], how, until)
    by_variant = dict(zip(variants, milliseconds, strict=True))
    context, targets = lengths(steps.one)
    return {
        "size": size,
        "batch": batch,
        "context_patches": context,
        "target_patches": targets,
        "losses": losses,
        "compile_s": compile_s,
        "turns": len(milliseconds[0]),
        "rows": [row(steps, variant, by_variant[variant], batch, flops[variant.noise]) for variant in variants],
        "ratios": {
            name: ratio(by_variant[above], by_variant[below])
            for name, (above, below) in RATIOS.items()
            if above in by_variant and below in by_variant
        },
        "said": said,
    }


def row(steps: Steps, variant: Variant, milliseconds: list[float], batch: int, flops: float) -> Row:
    low, median, high = statistics.quantiles(milliseconds, n=4)
    rate = batch / median * 1000
    peak = steps.how.peak
    return {
        **variant._asdict(),
        "ms": median,
        "ms_middle_half": [low, high],
        "images_per_s": rate,
        "flops_per_image": flops,
        "mfu": flops * rate / peak if peak else None,
        "peak_mib": steps.peak_mib(variant),
    }


def ratio(above: list[float], below: list[float]) -> list[float]:
    """Median of the turns' ratios, and their middle half."""
    low, median, high = statistics.quantiles([a / b for a, b in zip(above, below, strict=True)], n=4)
    return [median, low, high]


def turns(steps: list[Callable[[], float]], how: How, until: float) -> list[list[float]]:
    """Milliseconds of each variant's steps, all in turns, each turn in the other order."""
    seconds: list[list[float]] = [[] for _ in steps]
    for turn in range(WARM + how.turns):
        if turn >= WARM + FEWEST and time.monotonic() >= until:
            break
        order = range(len(steps)) if turn % 2 == 0 else reversed(range(len(steps)))
        for which in order:
            taken = timed(steps[which], how.device)
            if turn >= WARM:
                seconds[which].append(taken)
    return seconds


def timed(step: Callable[[], object], device: str) -> float:
    """Milliseconds, by events in the stream of a GPU."""
    if device == "cpu":
        start = time.perf_counter()
        step()
        return (time.perf_counter() - start) * 1000
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def lengths(one: Trainer) -> tuple[int, list[int]]:
    """Context patches of an image, and patches of each of its target blocks."""
    chosen = masks.sample(one.params.seed, one.step, places(one), one.grid, one.params.masks)
    return chosen.context_BK.shape[1], [block.shape[1] for block in chosen.targets]


def places(one: Trainer) -> Tensor:
    batch: Batch = one.batches.batch  # type: ignore[attr-defined]
    return batch.places


def model_flops(one: Trainer, noise: bool) -> float:
    """What the mathematics of one of our steps needs, by torch's counter: matrix products and attention, nothing computed again."""
    meta, params = torch.device("meta"), one.params
    chosen = masks.sample(params.seed, one.step, places(one), one.grid, params.masks).to(meta)
    images = torch.empty(len(places(one)), 3, params.encoder.image_size, params.encoder.image_size, device=meta)
    strays = [torch.empty(*block.shape, params.encoder.width, device=meta) for block in chosen.targets]

    def shapes(module: nn.Module) -> dict[str, Tensor]:
        named = module.named_parameters()
        return {name: torch.empty_like(p, device=meta).requires_grad_(p.requires_grad) for name, p in named}

    assert one.target is not None
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        with torch.no_grad():
            features = functional_call(one.target, shapes(one.target), (images,))
        inputs = images, chosen, Noise(strays, None) if noise else None, Targets(features, None)
        functional_call(one.model, shapes(one.model), inputs).backward()
    return float(counter.get_total_flops())


def halving(batch: int, work: Callable[[int], T], say: Callable[[str], None]) -> T:
    """`work` at `batch`, or at the first half of it, quarter of it, … that the device has memory for."""
    while True:
        try:
            return work(batch)
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
        # Out of the handler, where the error no longer holds the frames and their tensors.
        release()
        say(f"out of memory at batch {batch}: goes on with {batch // 2}")
        batch //= 2


def release() -> None:
    """Gives back the memory of what is no longer in use, closures and compiled layers that hold each other among it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def matmul_rate(device: str, precision: str, side: int) -> float:
    """FLOP/s of a square matrix product on random numbers: what the device gives in practice."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    taken = [timed(lambda: a @ b, device) for _ in range(13)][3:]
    return 2 * side**3 / statistics.median(taken) * 1000
