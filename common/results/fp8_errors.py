#!/usr/bin/env python3
"""How far 06_fp8 is from exact attention of its inputs: formats, scales, rotation, smoothing, on three kinds of inputs.

    make 04_fa2 06_fp8 && python3 common/results/fp8_errors.py > notes/results/fp8_errors.tsv

Needs NumPy, no GPU, and half an hour of a core. Each line is one way to round; its name says the inputs, the format
and the options. RMSE and the worst error are those of O against fp64 attention of the same inputs, over *all* rows of all heads,
because a few rows in which outliers meet decide. `better` is the number of heads whose RMSE is smaller than with the first way of
that format. `fp16` is 04_fa2/tuned. The inputs:

    normal      N(0,1)
    outliers    N(0,1), and N(0,100) on top of one in a thousand
    biased      N(0,1), and on top of every key of a head the same vector, N(0,16): what real models' keys tend to
"""
import argparse
import datetime
import os
import subprocess
import tempfile

import numpy as np

WAYS = ("e4m3/tensor", "e4m3/block", "e4m3/tensor/hadamard", "e4m3/block/hadamard", "e4m3/tensor/smooth-k",
        "e4m3/block/hadamard/smooth-k", "e5m2/tensor", "e5m2/block/hadamard/smooth-k")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", default="wgmma", choices=("mma", "wgmma", "overlapped"), help="of 06_fp8 (default: wgmma)")
    for name, default in (("heads", 16), ("seqlen", 4096), ("head-dim", 128)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    return parser.parse_args()


def run(stage, variant, folder, *more):
    """O of one run, as fp64; q.npy, k.npy and v.npy, rounded to fp16, are in the folder then."""
    command = [f"{stage}/{stage}", "--variant", variant, "--iters", "1", "--no-validate", "--save", folder, "--save-inputs", folder, *more]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(f"fp8_errors.py: {' '.join(command)}: exit code {said.returncode}: {said.stderr}")
    return loaded(folder, "o")


def loaded(folder, name):
    return np.load(os.path.join(folder, f"{name}.npy"))[0].astype(np.float64)


def exact(folder):
    """Attention of the folder's inputs by the definition, a head at a time."""
    q, k, v = (loaded(folder, name) for name in "qkv")
    o = np.empty_like(q)
    for head in range(len(q)):
        s = q[head] @ k[head].T / np.sqrt(q.shape[-1])
        p = np.exp(s - s.max(1, keepdims=True))
        o[head] = p @ v[head] / p.sum(1, keepdims=True)
    return o


def save_biased(folder, shape):
    random = np.random.default_rng(1)
    for name in "qkv":
        x = random.standard_normal(shape)
        if name == "k":
            x += 4 * random.standard_normal((1, shape[1], 1, shape[3]))
        np.save(os.path.join(folder, f"{name}.npy"), x.astype(np.float16))


def main():
    args = options()
    shape = ["--batch", "1", "--heads", str(args.heads), "--seqlen", str(args.seqlen), "--head-dim", str(args.head_dim)]
    print("way", "RMSE", "worst", "better", "date", sep="\t")
    for kind in ("normal", "outliers", "biased"):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as biased:
            if kind == "biased":
                save_biased(biased, (1, args.heads, args.seqlen, args.head_dim))
            inputs = ["--load", biased] if kind == "biased" else [*shape, "--inputs", kind]
            o = run("04_fa2", "tuned", folder, *inputs)
            o_exact = exact(folder)
            first = {}  # the errors per head of the first way of each format
            for way in ("fp16", *WAYS):
                if way != "fp16":
                    numbers, scaling, *flags = way.split("/")
                    o = run("06_fp8", args.variant, folder, *inputs, "--format", numbers, "--scaling", scaling, *(f"--{flag}" for flag in flags))
                error = o - o_exact
                heads = np.sqrt((error**2).mean((1, 2)))
                better = (heads < first.setdefault(way.split("/")[0], heads)).sum()
                print(f"{kind}/{way}", f"{np.sqrt((error**2).mean()):.2e}", f"{abs(error).max():.2e}", better, datetime.date.today(),
                      sep="\t", flush=True)


main()
