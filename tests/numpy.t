#!/usr/bin/env python3
"""numpy.t - real files in, real files out: q, k, v saved by NumPy go in by --load, and what --save writes loads in NumPy and
agrees with attention computed there in fp64. Skipped where NumPy is not installed; nothing else in the project needs it."""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("1..0 # SKIP NumPy is not installed")
    sys.exit(0)

count = failed = 0


def ok(good, name):
    global count, failed
    count += 1
    failed += not good
    print(("ok" if good else "not ok"), count, "-", name)


def attention(q, k, v, causal, lengths):
    """O and LSE in fp64, from the definition. q: [batch, heads, Sq, D]; k, v: [batch, kv_heads, Sk, D]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    row, column = np.arange(s.shape[2])[:, None], np.arange(s.shape[3])[None, :]
    for b, length in enumerate(lengths):
        hidden = column >= length
        if causal:
            hidden = hidden | (column > row + length - s.shape[2])
        s[b][:, np.broadcast_to(hidden, s.shape[2:])] = -np.inf
    m = np.maximum(s.max(axis=3, keepdims=True), -1e300)
    p = np.exp(s - m)
    l = p.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(l > 0, m + np.log(l), -np.inf)[..., 0]
    return (p / np.where(l > 0, l, 1)) @ v, lse


def run(stage, variant, shape_q, shape_k, file_type, dtype, causal, lengths):
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        q, k, v = (rng.standard_normal(s).astype(file_type) for s in (shape_q, shape_k, shape_k))
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            np.save(os.path.join(folder, name + ".npy"), tensor)
        command = [f"{stage}/{stage}", "--variant", variant, "--load", folder, "--save", folder, "--dtype", dtype]
        command += (["--causal"] if causal else []) + (["--lengths", ",".join(map(str, lengths))] if lengths else [])
        result = subprocess.run(command, capture_output=True, text=True)
        name = f"{stage}/{variant} {file_type} as {dtype}, {shape_q} x {shape_k}{', causal' if causal else ''}{f', lengths {lengths}' if lengths else ''}"
        if result.returncode:
            print("# " + (result.stdout + result.stderr).replace("\n", "\n# "))
            return ok(False, name)
        o, lse = np.load(os.path.join(folder, "o.npy")), np.load(os.path.join(folder, "lse.npy"))
        if dtype == "fp16":
            q, k, v = (x.astype(np.float16) for x in (q, k, v))
        want_o, want_lse = attention(q, k, v, causal, lengths or [shape_k[2]] * shape_k[0])
        epsilon = {"fp16": 2**-11, "bf16": 2**-7, "fp32": 2**-18}[dtype]  # bf16: the inputs are rounded too
        with np.errstate(invalid="ignore"):
            lse_error = np.where(lse == want_lse, 0, abs(lse - want_lse))
        right = (
            o.shape == shape_q and lse.shape == shape_q[:3] and lse.dtype == np.float32
            and o.dtype == (np.float16 if dtype == "fp16" else np.float32)
            and bool(np.all(abs(o - want_o) <= 4 * epsilon * (1 + abs(want_o))))
            and bool(np.all(lse_error <= (2e-2 if dtype == "bf16" else 1e-4)))
        )
        ok(right, name)


run("00_naive", "00_naive", (1, 2, 37, 40), (1, 2, 37, 40), np.float32, "fp32", False, None)
for variant in ("fma", "mma"):
    run("01_tiled", variant, (2, 4, 77, 64), (2, 4, 77, 64), np.float16, "fp16", False, None)
    run("01_tiled", variant, (2, 4, 77, 128), (2, 2, 131, 128), np.float16, "fp16", True, [131, 50])
    run("01_tiled", variant, (1, 3, 65, 64), (1, 1, 33, 64), np.float64, "fp16", True, None)
    run("01_tiled", variant, (1, 2, 19, 64), (1, 2, 90, 64), np.float32, "bf16", False, [0])
print(f"1..{count}")
sys.exit(1 if failed else 0)
