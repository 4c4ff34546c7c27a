#!/usr/bin/env python3
"""12_context_parallel beside PyTorch's context_parallel, on all GPUs of a host, in one run.

    make 12_context_parallel && torchrun --nproc-per-node 4 common/results/context.py
    torchrun --nproc-per-node 4 common/results/context.py --full --lengths 65536

Needs several GPUs, the stage built for them, and PyTorch 2.7 or later with NCCL. bf16, D = 128, causal unless --full.

Each row has the program's `alone` (one GPU), `gather` and `rounds`, from a common start until the last GPU has finished, and PyTorch's
time by each of its two ways to move keys, as the slowest process sees it. PyTorch is timed before and after the program, and
the two are averaged. While the program runs, PyTorch's processes wait on the CPU, because a barrier of NCCL would occupy the GPUs.
`of one GPU` is how many times faster than `alone`. Inputs are sharded beforehand on both sides. All figures are medians.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

try:
    from torch.distributed.tensor.experimental._attention import set_rotate_method
except ImportError:
    from torch.distributed.tensor.experimental._context_parallel._attention import set_rotate_method

PROGRAM = "./12_context_parallel/12_context_parallel"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")], default=[16384, 32768, 65536, 131072])
    parser.add_argument("--heads", type=lambda text: [tuple(int(n) for n in h.split("/")) for h in text.split(",")],
                        default=[(16, 16), (64, 8)], help="query heads/KV heads, as in 16/16,64/8")
    parser.add_argument("--full", action="store_true", help="no causal mask")
    parser.add_argument("--runs", type=int, default=20)
    return parser.parse_args()


def slowest(ms):
    """Of all processes."""
    worst = torch.tensor([ms], device="cuda")
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return worst.item()


def peer_ms(mesh, given, heads, kv_heads, n, method):
    """PyTorch's time, or None if it cannot run this."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, h, n, 128, device="cuda", dtype=torch.bfloat16) for h in (heads, kv_heads, kv_heads))
    times, failed = [], ""
    try:
        set_rotate_method(method)
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]), torch.no_grad(), \
                context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
            for run in range(5 + given.runs):
                dist.barrier()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                scaled_dot_product_attention(q, k, v, is_causal=not given.full, enable_gqa=heads != kv_heads)
                end.record()
                torch.cuda.synchronize()
                if run >= 5:
                    times.append(slowest(start.elapsed_time(end)))
    except Exception as error:  # named, and left out; what it is, is PyTorch's affair
        failed = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if failed and dist.get_rank() == 0:
        print(f"PyTorch, {method}: {failed}", file=sys.stderr)
    return None if failed else statistics.median(times)


def program_ms(given, heads, kv_heads, n):
    command = [PROGRAM, "--json", "--no-validate", "--batch", "1", "--heads", str(heads), "--kv-heads", str(kv_heads), "--seqlen", str(n),
               "--head-dim", "128", "--dtype", "bf16", "--mask", "full" if given.full else "causal", "--devices", str(dist.get_world_size())]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{' '.join(command)}: exit code {run.returncode}\n{run.stdout}{run.stderr}")
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    return {row["variant"].split("/")[-1]: row["latency_ms"] for row in rows}


def print_row(given, heads, kv_heads, n, ours, peers):
    flops = 4 * heads * n * n * 128 * (1 if given.full else 0.5)
    line = f"{'full' if given.full else 'causal'} {heads}/{kv_heads} S{n}"
    for name, ms in ours.items():
        line += f" | {name} {ms:.3f} ms {flops / ms / 1e9 / (1 if name == 'alone' else dist.get_world_size()):.0f} TF each"
        line += "" if name == "alone" else f", {ours['alone'] / ms:.2f} of one GPU"
    for name, ms in peers.items():
        line += f" | PyTorch {name} {ms:.3f} ms x{ms / min(ours['gather'], ours['rounds']):.3f}" if ms else f" | PyTorch {name} -"
    print(line, flush=True)


def main():
    given = arguments()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    on_cpu = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for heads, kv_heads in given.heads:
        for n in given.lengths:
            methods = ["allgather", "alltoall"]
            before = {method: peer_ms(mesh, given, heads, kv_heads, n, method) for method in methods}
            torch.cuda.empty_cache()
            dist.barrier(on_cpu)
            ours = program_ms(given, heads, kv_heads, n) if dist.get_rank() == 0 else None
            dist.barrier(on_cpu)
            after = {method: peer_ms(mesh, given, heads, kv_heads, n, method) for method in methods}
            if dist.get_rank() == 0:
                print_row(given, heads, kv_heads, n, ours,
                          {m: statistics.mean([before[m], after[m]]) if before[m] and after[m] else None for m in methods})
    dist.destroy_process_group()


main()
