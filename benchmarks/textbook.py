"""I-JEPA's step as a textbook has it: the peer of `benchmarks/step.py`, in plain torch and without any of this project's code.

The attention matrix is written out, each target block repeats the context, the moving average is a loop over tensors
and AdamW goes through them one by one. Parameter names are those of our model, so that both can start alike.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def positions(h: int, w: int, width: int) -> Tensor:
    omega = 1.0 / 10000 ** (torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    axis_y, axis_x = torch.meshgrid(torch.arange(h).double(), torch.arange(w).double(), indexing="ij")
    parts = [part(axis.reshape(-1, 1) * omega) for axis in (axis_x, axis_y) for part in (torch.sin, torch.cos)]
    return torch.cat(parts, dim=1).float()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, count, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential()
        self.mlp.fc1, self.mlp.act, self.mlp.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def take(tokens: Tensor, indices: Tensor) -> Tensor:
    return torch.gather(tokens, 1, indices.unsqueeze(-1).repeat(1, 1, tokens.shape[-1]))


class Encoder(nn.Module):
    def __init__(self, patch: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patch, self.width = patch, width
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, images: Tensor, seen: Tensor | None = None) -> Tensor:
        h, w = images.shape[2] // self.patch, images.shape[3] // self.patch
        x = self.patch_embed["proj"](images).flatten(2).transpose(1, 2) + positions(h, w, self.width).to(images.device)
        x = x if seen is None else take(x, seen)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Predictor(nn.Module):
    def __init__(self, encoder_width: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.width = width
        self.embed, self.head = nn.Linear(encoder_width, width), nn.Linear(width, encoder_width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(
        self, encoded: Tensor, seen: Tensor, targets: list[Tensor], grid: tuple[int, int], noise: list[Tensor]
    ) -> Tensor:
        table = positions(*grid, self.width).to(encoded.device).repeat(len(encoded), 1, 1)
        context = (self.embed(encoded) + take(table, seen)).repeat(len(targets), 1, 1)
        masked = [
            take(table, target) + functional.linear(n, self.embed.weight) + self.mask_token
            for target, n in zip(targets, noise, strict=True)
        ]
        x = torch.cat([context, torch.cat(masked)], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, context.shape[1] :])


class Step:
    """One update of encoder, predictor and target encoder."""

    def __init__(self, encoder: Encoder, predictor: Predictor, target: Encoder, lr: float, weight_decay: float) -> None:
        self.encoder, self.predictor, self.target = encoder, predictor, target.requires_grad_(False)
        named = [*encoder.named_parameters(), *predictor.named_parameters()]
        matrices = [p for name, p in named if p.ndim > 1 and "bias" not in name]
        vectors = [p for name, p in named if not (p.ndim > 1 and "bias" not in name)]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=lr, foreach=False, fused=False)

    def __call__(
        self, images: Tensor, seen: Tensor, targets: list[Tensor], noise: list[Tensor], momentum: float, bf16: bool
    ) -> float:
        patch = self.encoder.patch
        grid = images.shape[2] // patch, images.shape[3] // patch
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            with torch.no_grad():
                features = self.target(images).float()
                features = functional.layer_norm(features, features.shape[-1:])
                wanted = torch.cat([take(features, target) for target in targets])
            predicted = self.predictor(self.encoder(images, seen), seen, targets, grid, noise)
            loss = functional.smooth_l1_loss(predicted.float(), wanted)
        self.adamw.zero_grad()
        loss.backward()
        self.adamw.step()
        with torch.no_grad():
            for kept, trained in zip(self.target.parameters(), self.encoder.parameters(), strict=True):
                kept.mul_(momentum).add_((1.0 - momentum) * trained)
        return loss.item()
