"""Your own training loop, on as many workers as you start.

    torchrun --nproc-per-node 2 examples/own_loop.py

The three lines that Offbeat adds are marked. Started with plain `python` it trains alone.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import offbeat  # 1

pixels, labels = load_digits(return_X_y=True)
inputs, targets = torch.tensor(pixels / 16).float(), torch.tensor(labels)
train = TensorDataset(inputs[:1500], targets[:1500])
train = offbeat.shard(train)  # 2
loader = DataLoader(train, batch_size=16, shuffle=True)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

with offbeat.attach(model, optimizer, "lasgd"):  # 3
    for _epoch in range(10):
        for images, digits in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), digits).backward()
            optimizer.step()

right = model(inputs[1500:]).argmax(1) == targets[1500:]
print(f"accuracy {right.float().mean():.1%}")
