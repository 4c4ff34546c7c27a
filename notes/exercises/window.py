"""Judges exercise 04.5, a sliding window of W = 40 keys: how far is the o that --save wrote from the one that NumPy computes?

    make 04_fa2 && mkdir -p build/win
    ./04_fa2/04_fa2 --variant fma --causal --dtype fp32 --batch 1 --heads 1 --seqlen 300 --seqlen-k 306 --no-validate \\
        --save-inputs build/win --save build/win
    cd build/win && python3 ../../notes/exercises/window.py      less than 0.0001 if the kernel is right
"""
import numpy as np

W = 40
q, k, v, o = (np.load(f"{name}.npy")[0, 0].astype(float) for name in ("q", "k", "v", "o"))
s = q @ k.T / q.shape[1] ** 0.5
i, j = np.indices(s.shape)
i += len(k) - len(q)  # the query's position among the keys
p = np.where((i - W < j) & (j <= i), np.exp(s), 0)
print(abs(p @ v / np.maximum(p.sum(1, keepdims=True), 1e-30) - o).max())
