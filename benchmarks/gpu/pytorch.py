"""`python -m benchmarks.gpu.pytorch`: answers requests for training steps of the same networks in PyTorch.

It imports nothing of the project or of TensorFlow, so it also runs in an environment that has PyTorch only. Batches are
drawn from images in memory, without DataLoader; layouts are channels_last; networks run eagerly, without torch.compile.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.answering import answer_requests

DTYPES = {"mixed_float16": torch.float16, "mixed_bfloat16": torch.bfloat16}
CLASSES = 10
TIMED = 2


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a shortcut without weights (option A of arXiv:1512.03385)."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, filters, stride)
        self.second = _convolution(filters, filters)
        self.stride, self.missing = stride, filters - inputs

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs = self.second(torch.relu(self.first(images)))
        shortcut = images[:, :, :: self.stride, :: self.stride]
        if self.missing:
            before = self.missing // 2
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, before, self.missing - before))
        return torch.relu(outputs + shortcut)


def _convolution(inputs: int, filters: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, filters, 3, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(filters))


def cnn(side: int, channels: int, filters: tuple[int, ...] = (32, 64)) -> nn.Module:
    """Return the project's `cnn` with its default dropout."""
    layers: list[nn.Module] = []
    for count in filters:
        layers += [nn.Conv2d(channels, count, 3), nn.ReLU(), nn.MaxPool2d(2)]
        channels, side = count, (side - 2) // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(side * side * channels, CLASSES))


def resnet20(side: int, channels: int, blocks: int = 3, filters: tuple[int, ...] = (16, 32, 64)) -> nn.Module:
    """Return the project's `resnet20`."""
    layers: list[nn.Module] = [_convolution(channels, filters[0]), nn.ReLU()]
    inputs = filters[0]
    for group, count in enumerate(filters):
        for block in range(blocks):
            layers.append(Residual(inputs, count, stride=2 if group and not block else 1))
            inputs = count
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


def mobilenet_v2(side: int, channels: int, alpha: float = 1.0) -> nn.Module:
    from torchvision.models import mobilenet_v2 as build

    return build(width_mult=alpha, num_classes=CLASSES)


def efficientnet_v2_s(side: int, channels: int) -> nn.Module:
    from torchvision.models import efficientnet_v2_s as build

    return build(num_classes=CLASSES)


OF_TORCHVISION = ("mobilenet_v2", "efficientnet_v2_s")
NETWORKS = {one.__name__: one for one in (cnn, resnet20, mobilenet_v2, efficientnet_v2_s)}


def _torchvision() -> str | None:
    try:
        return version("torchvision")
    except PackageNotFoundError:
        return None


class Steps:
    """Training steps by Adam."""

    def __init__(self) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def facts(self) -> dict[str, Any]:
        """Return the versions of PyTorch and of CUDA, and the GPU that it finds."""
        name = torch.cuda.get_device_name() if self._device.type == "cuda" else None
        return {
            "torch": torch.__version__,
            "torchvision": _torchvision(),
            "torch_cuda": torch.version.cuda,
            "gpu": name,
        }

    def warm_up(self, network: Mapping[str, Any], policy: str, tf32: bool) -> dict[str, float]:
        """Build a network and take its first steps; return the seconds per step."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = True
        if network["name"] in OF_TORCHVISION and _torchvision() is None:
            raise RuntimeError("torchvision is not installed")
        side, channels = network["side"], network["channels"]
        self._batch, examples = network["batch"], network["examples"]
        model = NETWORKS[network["name"]](side, channels, **network["arguments"])
        self._model = model.to(self._device, memory_format=torch.channels_last).train()
        self._optimizer = torch.optim.Adam(self._model.parameters())
        self._loss = nn.CrossEntropyLoss()
        self._dtype = DTYPES.get(policy)
        self._scaler = torch.amp.GradScaler(self._device.type, enabled=policy == "mixed_float16")
        shape = (examples, channels, side, side)
        images = torch.randint(0, 256, shape, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
        labels = torch.randint(0, CLASSES, (examples,))
        is_cuda = self._device.type == "cuda"
        self._images, self._labels = (images.pin_memory(), labels.pin_memory()) if is_cuda else (images, labels)
        self.take_steps(1)
        return {"seconds_per_step": self.take_steps(TIMED)["seconds"] / TIMED}

    def take_steps(self, steps: int) -> dict[str, float]:
        """Take some steps; return their seconds."""
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - began}

    def _step(self) -> None:
        rows = torch.randint(0, len(self._images), (self._batch,))
        images = self._images[rows].to(self._device, non_blocking=True).float().div(255)
        images = images.contiguous(memory_format=torch.channels_last)
        labels = self._labels[rows].to(self._device, non_blocking=True)
        with torch.autocast(self._device.type, self._dtype) if self._dtype else nullcontext():
            loss = self._loss(self._model(images), labels)
        self._optimizer.zero_grad()
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()


if __name__ == "__main__":
    steps = Steps()
    answer_requests({"facts": steps.facts, "warm_up": steps.warm_up, "take_steps": steps.take_steps})
