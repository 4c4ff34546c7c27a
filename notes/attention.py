"""attention.py - a kernel of this project as a function of NumPy arrays or PyTorch tensors (notes/setup.md).

    import sys
    sys.path.append("notes")
    from attention import attention

    o, lse = attention(q, k, v, "--causal")                 # in the folder of the project, after make 04_fa2
    o, lse, dq, dk, dv = attention(q, k, v, d_o=d_o)        # after make 05_fa2_backward
"""
import subprocess
import tempfile

import numpy as np


def attention(q, k, v, *options, d_o=None, program=None, variant=None):
    """[O, LSE], and with a dO [O, LSE, dQ, dK, dV]. Shapes: [batch, heads, seqlen, head_dim]; options: of the program."""
    if d_o is None:
        inputs, outputs = {"q": q, "k": k, "v": v}, ["o", "lse"]
        usual_program, usual_variant = "./04_fa2/04_fa2", "tuned"
    else:
        inputs, outputs = {"q": q, "k": k, "v": v, "do": d_o}, ["o", "lse", "dq", "dk", "dv"]
        usual_program, usual_variant = "./05_fa2_backward/05_fa2_backward", "atomic"
    dtype = "bf16" if is_bf16(q) else "fp16"
    with tempfile.TemporaryDirectory() as folder:
        for name, x in inputs.items():
            np.save(f"{folder}/{name}.npy", np.ascontiguousarray(to_numpy(x)))
        run = subprocess.run([program or usual_program, "--variant", variant or usual_variant, "--load", folder, "--save", folder,
                              "--iters", "1", "--dtype", dtype, *options], capture_output=True, text=True)
        if run.returncode:  # the result is wrong, or there is none: the program says why
            raise RuntimeError(run.stdout + run.stderr)
        return [like(q, np.load(f"{folder}/{name}.npy"), name) for name in outputs]


def is_torch(x):
    return hasattr(x, "new_tensor")


def is_bf16(x):
    return str(x.dtype) in ("torch.bfloat16", "bfloat16", "|V2")


def to_numpy(x):
    if is_torch(x):
        return x.detach().cpu().float().numpy()  # fp32 holds fp16 and bf16 exactly
    if is_bf16(x):  # to NumPy two bytes without a meaning: the upper half of an fp32
        return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x


def like(q, x, name):
    """A result x in the type of q; LSE stays in fp32."""
    if is_torch(q):
        return (q.float() if name == "lse" else q).new_tensor(x)
    if name == "lse":
        return x
    if is_bf16(q):
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(q.dtype)
    return x.astype(q.dtype)
