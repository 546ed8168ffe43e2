"""Epochs of a net in PyTorch on the CPU, for benchmarks/nets.py; run by an interpreter that has torch and numpy alone.

The same net and batches: whole queries, about as many documents; dense layers, batch normalisation, ReLU, dropout,
AdamW, and the softmax cross entropy of each list.  ``padded`` lists are how PyTorch users compute it; it takes a few
per cent of the time.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch


def main() -> None:
    folder, threads, epochs, documents, dropout = sys.argv[1], *map(float, sys.argv[2:6])
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    x, grades, starts = (np.load(f"{folder}/{name}.npy") for name in ("x", "grades", "starts"))
    widths = json.loads(sys.argv[6])
    layers, n = [], x.shape[1]
    for width in widths:
        layers += [torch.nn.Linear(n, width, bias=False), torch.nn.BatchNorm1d(width), torch.nn.ReLU()]
        layers += [torch.nn.Dropout(dropout)] if dropout else []
        n = width
    net = torch.nn.Sequential(*layers, torch.nn.Linear(n, 1, bias=False))
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.002, weight_decay=0.01, fused=True)
    gains = torch.from_numpy((2.0**grades - 1.0).astype(np.float32))
    values, sizes = torch.from_numpy(x), np.diff(starts)
    longest = int(sizes.max())
    rng, seconds, cores = np.random.default_rng(0), [], []
    for _ in range(int(epochs)):
        start, used = time.perf_counter(), time.process_time()
        order = rng.permutation(len(sizes))
        a_batch = max(1, round(documents / sizes.mean()))
        for first in range(0, len(order), a_batch):
            queries = order[first : first + a_batch]
            places = np.minimum(starts[queries][:, None] + np.arange(longest), starts[queries + 1][:, None] - 1)
            real = torch.from_numpy(np.arange(longest) < sizes[queries][:, None])
            rows = torch.from_numpy(places[real.numpy()])
            scores = torch.full(real.shape, -1e30)
            scores[real] = net(values[rows]).squeeze(1)
            target = torch.zeros(real.shape)
            target[real] = gains[rows]
            target = target / target.sum(1, keepdim=True).clamp(min=1e-9)
            loss = -(target * torch.log_softmax(scores, 1)).sum(1).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        seconds.append(time.perf_counter() - start)
        cores.append(time.process_time() - used)
    print(json.dumps({"torch": torch.__version__, "seconds": seconds, "cores": cores, "loss": float(loss)}))


if __name__ == "__main__":
    main()
