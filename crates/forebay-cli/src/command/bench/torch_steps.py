"""Trains a network on random batches in memory, and prints the time of each step as one line of JSON."""

import json
import sys
import time

name, batch, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
try:
    import torch
    import torchvision
except ImportError as error:
    sys.exit(f"{error}; pip install torch torchvision")

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = getattr(torchvision.models, name)(weights=None).to(device).train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()
images = torch.rand(batch, 3, 224, 224, device=device)
labels = torch.randint(0, 1000, (batch,), device=device)


def step():
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    criterion(model(images), labels).backward()
    optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


step()  # The first step allocates memory and chooses kernels.
end = time.perf_counter() + seconds
times = [step(), step(), step()]
while time.perf_counter() < end and len(times) < 10_000:
    times.append(step())
print(json.dumps({"step_s": times, "torch": torch.__version__, "device": device.type, "threads": torch.get_num_threads()}))
