#!/usr/bin/env python3
"""numpy.t - real files in, real files out: q, k, v saved by NumPy go in by --load, and what --save writes loads in NumPy and
agrees with attention computed there in fp64. And the function attention(q, k, v) of notes/attention.py. Skipped where
NumPy is not installed; nothing else in the project needs it."""
import os
import subprocess
import sys
import tempfile

if os.environ.get("TEST_DEVICE") == "cuda" and not os.environ.get("TEST_ALL"):
    print("1..0 # SKIP the CPU device has answered for the host")
    sys.exit(0)
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


def attention(q, k, v, causal, lengths, d_o=None, change=None, sinks=None):
    """O, LSE and, with a dO, dQ, dK and dV in fp64, from the definition. q: [batch, heads, Sq, D]; k, v: [batch, kv_heads, Sk, D].
    change: a function of the scores, and of the distances from a query's own key, that returns new ones and the derivative; sinks: one
    for each head, whose gradient then comes last."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    row, column = np.arange(s.shape[2])[:, None], np.arange(s.shape[3])[None, :]
    derivative = 1
    if change:
        s, derivative = change(s, np.stack([column - row - length + s.shape[2] for length in lengths])[:, None])
    for b, length in enumerate(lengths):
        hidden = column >= length
        if causal:
            hidden = hidden | (column > row + length - s.shape[2])
        s[b][:, np.broadcast_to(hidden, s.shape[2:])] = -np.inf
    sink = np.full(s.shape[1], -np.inf) if sinks is None else sinks.astype(np.float64)
    sink = sink[None, :, None, None]
    m = np.maximum(np.maximum(s.max(axis=3, keepdims=True), sink), -1e300)
    p = np.exp(s - m)
    l = p.sum(axis=3, keepdims=True) + np.exp(sink - m)
    with np.errstate(divide="ignore"):
        lse = np.where(l > 0, m + np.log(l), -np.inf)[..., 0]
    p = p / np.where(l > 0, l, 1)
    if d_o is None:
        return p @ v, lse
    dp = d_o.astype(np.float64) @ v.swapaxes(2, 3)
    delta = (p * dp).sum(axis=3, keepdims=True)
    ds = p * (dp - delta) * derivative / np.sqrt(q.shape[3])
    summed = lambda x: x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2)  # over the heads of a group
    gradients = ds @ k, summed(ds.swapaxes(2, 3) @ q), summed(p.swapaxes(2, 3) @ d_o)
    if sinks is not None:
        gradients += (-(np.exp(sink - m) / l * delta).sum(axis=(0, 2, 3)),)
    return p @ v, lse, *gradients


def changed_by(text, heads):
    """What --score TEXT says, as a function for attention()."""
    says = dict((part + ":").split(":")[:2] for part in text.split("+"))
    below = 2 ** int(np.log2(heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)] + [2 ** (-4 * i / below) for i in range(1, 2 * below, 2)]

    def change(s, ahead):
        derivative = np.ones_like(s)
        if "softcap" in says:
            cap = float(says["softcap"])
            s, derivative = cap * np.tanh(s / cap), 1 - np.tanh(s / cap) ** 2
        if "alibi" in says:
            s = s - np.array(slopes[:heads])[None, :, None, None] * abs(ahead)
        if "window" in says:
            left, right = map(int, says["window"].split(","))
            s = np.where((ahead < -left) | (ahead > right), -np.inf, s)
        return s, derivative
    return change


def run(stage, variant, shape_q, shape_k, file_type, dtype, causal=False, lengths=None, score=""):
    """What the stage's program saves of tensors that NumPy has drawn, against attention()."""
    rng, is_backward = np.random.default_rng(7), stage.endswith("_backward")
    options = ["--causal"] * causal + (["--lengths", ",".join(map(str, lengths))] if lengths else [])
    options += [word for part in score.split("+") if part for word in ("--score", part)]
    q, k, v, d_o = (rng.standard_normal(s).astype(file_type) for s in (shape_q, shape_k, shape_k, shape_q))
    q *= 3 if score else 1  # so that a soft cap does something
    with tempfile.TemporaryDirectory() as given, tempfile.TemporaryDirectory() as saved:
        for name, tensor in (("q", q), ("k", k), ("v", v), ("do", d_o)):
            np.save(os.path.join(given, name + ".npy"), tensor)
        command = [f"{stage}/{stage}", "--variant", variant, "--load", given, "--save", saved, "--save-inputs", saved, "--iters", "1"]
        result = subprocess.run(command + ["--dtype", dtype] + options, capture_output=True, text=True)
        name = f"{stage}/{variant} {np.dtype(file_type)} as {dtype}, {shape_q} x {shape_k} {' '.join(options)}"
        if result.returncode:
            print("# " + (result.stdout + result.stderr).replace("\n", "\n# "))
            return ok(False, name)
        outputs = {file: np.load(os.path.join(saved, file + ".npy")) for file in
                   ["o", "lse"] + ["dq", "dk", "dv"] * is_backward + ["dsinks"] * (is_backward and "sink" in score)}
        sinks = np.load(os.path.join(saved, "sinks.npy")) if "sink" in score else None
    if dtype == "fp16":
        q, k, v, d_o = (x.astype(np.float16) for x in (q, k, v, d_o))
    want = attention(q, k, v, causal, lengths or [shape_k[2]] * shape_k[0], d_o if is_backward else None,
                     changed_by(score, shape_q[1]) if score else None, sinks)
    right, epsilon = len(want) == len(outputs), {"fp16": 2**-11, "bf16": 2**-7, "fp32": 2**-18}[dtype]  # bf16: the inputs are rounded too
    for (file, x), y in zip(outputs.items(), want):
        is_fp32 = file in ("lse", "dsinks") or dtype != "fp16"
        allowed = (2e-2 if dtype == "bf16" else 1e-4) if file == "lse" else 4 * epsilon * (1 + (abs(y) if file == "o" else abs(y).max()))
        with np.errstate(invalid="ignore"):
            error = np.where(x == y, 0, abs(x - y))
        right = right and x.shape == y.shape and x.dtype == (np.float32 if is_fp32 else np.float16) and bool(np.all(error <= allowed))
    ok(right, name)


run("00_naive", "00_naive", (1, 2, 37, 40), (1, 2, 37, 40), np.float32, "fp32")
for variant in ("fma", "mma"):
    run("01_tiled", variant, (2, 4, 77, 64), (2, 4, 77, 64), np.float16, "fp16")
    run("01_tiled", variant, (2, 4, 77, 128), (2, 2, 131, 128), np.float16, "fp16", True, [131, 50])
    run("01_tiled", variant, (1, 3, 65, 64), (1, 1, 33, 64), np.float64, "fp16", True)
    run("01_tiled", variant, (1, 2, 19, 64), (1, 2, 90, 64), np.float32, "bf16", False, [0])
for variant in ("fma", "two_pass", "atomic", "00_naive"):
    run("05_fa2_backward", variant, (2, 4, 37, 64), (2, 2, 53, 64), np.float64, "fp16", True, [53, 20])

# ---- score mods, forward and backward
for score, heads in ("softcap:2", 3), ("alibi", 6), ("window:20,5", 3), ("sink", 3), ("softcap:2+window:30,0", 3), ("sink+window:9,0+softcap:4", 3):
    shapes = (2, heads, 70, 64), (2, heads // 3, 90, 64), np.float16
    run("11_score_mod", "fma", *shapes, "fp32", "0" in score, [90, 50], score)
    run("11_score_mod", "fused", *shapes, "fp16", "5" in score, [90, 50], score)
    run("11_score_mod_backward", "fma", *shapes, "fp32", "0" in score, [90, 0], score)
run("11_score_mod_backward", "fma", (2, 6, 70, 64), (2, 2, 90, 64), np.float16, "fp16", True, [31, 90], "alibi+sink+softcap:3")

# ---- attention(q, k, v) of notes/attention.py: NumPy, PyTorch (or what the function knows of it), and bf16 in both
sys.path.append("notes")
sys.dont_write_bytecode = True
from attention import attention as by_program


class Tensor:
    """A PyTorch tensor as far as the function uses one; a bf16 one keeps fp32 numbers."""

    def __init__(self, values, dtype):
        self.values, self.dtype = values, "torch." + dtype

    def detach(self):
        return self

    cpu = detach

    def float(self):
        return Tensor(self.values.astype(np.float32), "float32")

    def numpy(self):
        assert self.dtype == "torch.float32", "NumPy takes no bf16 tensor"
        return self.values

    def new_tensor(self, array):
        return Tensor(array, self.dtype[len("torch."):])


def bf16(x):
    return x.view(np.uint32) >> 16 << 16


def same_as_definition(name, tensors, plain, causal, back, *options, **which):
    """`tensors` go in; what comes out is, once it is `back` in NumPy, attention of the plain ones. A fourth one is dO."""
    q, k, v, d_o = [*tensors, None][:4]
    got = by_program(q, k, v, *(["--causal"] if causal else []), *options, d_o=d_o, **which)
    want = attention(*plain[:3], causal, [plain[1].shape[2]] * len(plain[1]), *plain[3:])
    right = len(got) == len(want) and "float32" in str(got[1].dtype)
    epsilon = 2**-8 if plain[0] is brain[0] else 2**-11  # of the products and of O
    for i, (x, y) in enumerate(zip(got, want)):
        is_lse, size = i == 1, abs(y) if i < 2 else abs(y).max()  # an element of a gradient is a sum that may cancel
        right = right and (is_lse or str(x.dtype) == str(q.dtype) and type(x) is type(q))
        error = abs((x if is_lse and isinstance(x, np.ndarray) else back(x)) - y)
        right = right and bool(np.all(error <= 4 * epsilon * (1 + size)))
    ok(right, f"attention(q, k, v) of attention.py: {name}")


rng = np.random.default_rng(3)
wide = [rng.standard_normal(s).astype(np.float32) for s in ((2, 4, 9, 64), (2, 2, 17, 64), (2, 2, 17, 64))]
half = [x.astype(np.float16) for x in wide]
brain = [bf16(x).view(np.float32) for x in wide]  # fp32 arrays of bf16 numbers
void = [(x.view(np.uint32) >> 16).astype(np.uint16).view("V2") for x in brain]
same_as_definition("fp16 arrays", half, half, False, lambda o: o)
same_as_definition("fp32 arrays, rounded to fp16", wide, half, True, lambda o: o)
same_as_definition("fp32 arrays, as they are", wide, wide, True, lambda o: o, "--dtype", "fp32", program="./00_naive/00_naive", variant="00_naive")
same_as_definition("arrays in Fortran order", [np.asfortranarray(x) for x in half], half, True, lambda o: o)
same_as_definition("arrays that were transposed", [x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in half], half, True, lambda o: o)
widened = lambda o: (o.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
same_as_definition("bf16, to NumPy two bytes", void, brain, True, widened)
gradient = rng.standard_normal((2, 4, 9, 64)).astype(np.float32)
same_as_definition("gradients", [*half, gradient.astype(np.float16)], [*half, gradient.astype(np.float16)], True, lambda o: o)
same_as_definition("gradients in bf16", [*void, (bf16(gradient) >> 16).astype(np.uint16).view("V2")],
                   [*brain, bf16(gradient).view(np.float32)], False, widened)
try:
    import ml_dtypes

    same_as_definition("bf16 arrays of ml_dtypes", [x.astype(ml_dtypes.bfloat16) for x in brain], brain, True, widened)
except ImportError:
    ok(True, "# SKIP ml_dtypes is not installed")
same_as_definition("fp16 tensors that look like PyTorch's", [Tensor(x, "float16") for x in half], half, True, lambda o: o.values)
same_as_definition("bf16 ones", [Tensor(x, "bfloat16") for x in brain], brain, False, lambda o: o.values)
try:
    import torch

    for name, dtype, plain in ("fp16", torch.float16, half), ("bf16", torch.bfloat16, brain), ("fp32", torch.float32, half):
        back = lambda o: o.float().numpy()
        same_as_definition(f"{name} tensors of PyTorch", [torch.tensor(x).to(dtype) for x in (wide if name == "fp32" else plain)], plain, True, back)
except ImportError:
    ok(True, "# SKIP PyTorch is not installed")
try:
    by_program(*wide, "--dtype", "fp32")
    ok(False, "attention.py: what cannot run raises")
except RuntimeError as error:
    ok("takes fp16, bf16, not fp32" in str(error), "attention.py: what cannot run raises, and says why")

# ---- a file of bf16 is refused with the way out
with tempfile.TemporaryDirectory() as folder:
    for name, x in zip("qkv", void):
        np.save(os.path.join(folder, name + ".npy"), x)
    result = subprocess.run(["00_naive/00_naive", "--load", folder], capture_output=True, text=True)
    want = f"00_naive: --load: {folder}/q.npy: holds '|V2', as NumPy writes bf16: save it widened to float32, and choose --dtype bf16\n"
    ok(result.returncode == 2 and result.stderr == want, "a file of bf16: one line says what to do")
print(f"1..{count}")
sys.exit(1 if failed else 0)
