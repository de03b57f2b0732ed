"""The convnet of `keras_mnist` in PyTorch, channels_last, all images in memory.

    python torch_mnist.py IMAGES TIMES [compiled]

IMAGES: an .npz with `images` uint8 [N, 28, 28, 1] and `labels`. TIMES: where the seconds of the epochs are written.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

path, times, *options = sys.argv[1:]
with np.load(path) as file:
    images = torch.from_numpy(file["images"]).permute(0, 3, 1, 2).float().div(255)
    labels = torch.from_numpy(file["labels"]).long()
cut = len(images) * 9 // 10
train = DataLoader(TensorDataset(images[:cut], labels[:cut]), batch_size=128, shuffle=True)
val = DataLoader(TensorDataset(images[cut:], labels[cut:]), batch_size=128)

model: nn.Module = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * 5 * 5, 10),
).to(memory_format=torch.channels_last)  # fmt: skip
step = torch.compile(model) if options == ["compiled"] else model
optimizer, loss_of = torch.optim.Adam(model.parameters()), nn.CrossEntropyLoss()
seconds: dict[str, list[float]] = {"training": [], "validation": []}

for epoch in range(3):
    began = time.perf_counter()
    model.train()
    for batch, target in train:
        loss = loss_of(step(batch.to(memory_format=torch.channels_last)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds["training"].append(time.perf_counter() - began)
    began, correct = time.perf_counter(), 0
    model.eval()
    with torch.no_grad():
        for batch, target in val:
            correct += int((step(batch.to(memory_format=torch.channels_last)).argmax(1) == target).sum())
    seconds["validation"].append(time.perf_counter() - began)
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}, val accuracy {correct / (len(images) - cut):.4f}")
Path(times).write_text(json.dumps(seconds))
