"""augmented: images moved by a few pixels and half of them mirrored, anew in every step."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import BadInput

MOST_PIXELS = 4  # that an image moves, each way; what comes in from outside is 0


def check_images(inputs: Tensor) -> None:
    if inputs.dim() != 4:
        raise BadInput(
            f"inputs of shape {tuple(inputs.shape[1:])} are no images [channels, height, width]: leave out --augment"
        )


def augmented(images: Tensor) -> Tensor:
    """Of images [samples, channels, height, width], by torch's generator of their device."""
    samples, _, height, width = images.shape
    device = images.device
    down, right = torch.randint(0, 2 * MOST_PIXELS + 1, (2, samples, 1), device=device)
    mirrored = torch.rand(samples, 1, device=device) < 0.5
    rows = down + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(samples, width)
    columns = right + torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(images, (MOST_PIXELS,) * 4).permute(0, 2, 3, 1)
    sample = torch.arange(samples, device=device)
    return padded[sample[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
