#!/usr/bin/env python3
"""12_context_parallel and its backward pass on all GPUs of a host, beside PyTorch's context_parallel, in one run.

    make 12_context_parallel 12_context_parallel_backward && python3 common/results/context.py >context.tsv

Needs several GPUs and the two stages built for them; PyTorch 2.7 or later if it is to be compared. bf16, D = 128.

What it prints is what notes/results/<device>/context.tsv holds, a line per problem and pass. `one GPU` is the program's `alone`, the
same kernel in the same run. Behind `gather`, `rounds`, `contiguous` and `two GPUs` is how many times faster than that they are;
the last two are `rounds`, too, with contiguous chunks and on two GPUs. A time runs from a common start until the last GPU has
finished, with inputs that are sharded beforehand, and is a median. The times of a forward and a backward pass are added.

PyTorch is timed before the programs and after them, and the two are averaged. Of its kernels and its two ways to move keys the
fastest counts; what fails is named on stderr, as is all progress. Its result is compared with that of one GPU first.
"""
import argparse
import importlib.util
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time

STAGES = {"forward": "12_context_parallel", "backward": "12_context_parallel_backward"}
HEAD_DIM = 128


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")], default=[16384, 65536])
    parser.add_argument("--heads", type=lambda text: [tuple(int(n) for n in h.split("/")) for h in text.split(",")],
                        default=[(16, 16), (64, 8)], help="query heads/KV heads, as in 16/16,64/8")
    parser.add_argument("--programs", default=".", help="the folder with the stages' programs")
    parser.add_argument("--limit", type=float, default=600, help="seconds that all takes at most; PyTorch a third of it, twice")
    parser.add_argument("--peers", action="store_true", help=argparse.SUPPRESS)  # a process of PyTorch's
    return parser.parse_args()


began = time.monotonic()


def progress(text):
    print(f"{time.monotonic() - began:4.0f} s  {text}", file=sys.stderr, flush=True)


# ---- PyTorch: one process per GPU, each of which runs this file with --peers ----


def peer_times(given):
    """Prints a line of JSON for each way to compute each problem."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as functional  # context_parallel replaces a function in this module
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    try:
        from torch.distributed.tensor.experimental._context_parallel import _attention as ways
    except ImportError:
        from torch.distributed.tensor.experimental import _attention as ways

    on_one_gpu = functional.scaled_dot_product_attention
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}

    def slowest(ms):
        """Of all processes."""
        worst = torch.tensor([ms], device="cuda")
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return worst.item()

    def median(run):
        """Of as many runs as take a quarter of a second, but at least 3 and at most 20; all processes stop at the same one."""
        times = []
        for count in range(-2, 20):
            dist.barrier()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            ms = slowest(start.elapsed_time(end))
            if count >= 0:
                times.append(ms)
            if len(times) >= 3 and sum(times) > 250:
                break
        return statistics.median(times)

    def time_one(inputs, expected, causal, has_backward, backend):
        shards = [tensor.clone() for tensor in (*inputs, expected)]
        with sdpa_kernel(backend), context_parallel(mesh, buffers=shards, buffer_seq_dims=[2] * 4, no_restore_buffers=set(shards)):
            qkv, d_o = shards[:3], torch.randn_like(shards[3])
            for tensor in qkv:
                tensor.requires_grad_(has_backward)

            def run():
                with torch.set_grad_enabled(has_backward):
                    o = functional.scaled_dot_product_attention(*qkv, is_causal=causal, enable_gqa=qkv[0].shape[1] != qkv[1].shape[1])
                    if has_backward:
                        torch.autograd.grad(o, qkv, d_o)
                return o.detach()

            error = slowest(((run() - shards[3]).float().norm() / shards[3].float().norm()).item())
            if not error < 0.03:  # both are rounded to 8 bits
                raise ArithmeticError(f"its result differs from one GPU's by {100 * error:.2g}%")
            return median(run)

    for heads, kv_heads in given.heads:
        for n in given.lengths:
            torch.manual_seed(0)
            inputs = [torch.randn(1, h, n, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for h in (heads, kv_heads, kv_heads)]
            for causal in (True, False):
                ways._cp_options.enable_load_balance = causal  # which is zigzag
                with torch.no_grad():
                    expected = on_one_gpu(*inputs, is_causal=causal, enable_gqa=heads != kv_heads)
                for passes in ("forward", "both"):
                    for method in ("allgather", "alltoall"):
                        for name, backend in backends.items():
                            row = {"causal": causal, "heads": f"{heads}/{kv_heads}", "seqlen": n, "passes": passes,
                                   "way": f"{method}, {name}"}
                            ways.set_rotate_method(method)
                            try:
                                row["ms"] = time_one(inputs, expected, causal, passes == "both", backend)
                            except Exception as error:  # what it is, is PyTorch's affair
                                row["failed"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                            torch.cuda.empty_cache()
                            if dist.get_rank() == 0:
                                print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_peers(given):
    """The rows of all that worked, as far as there was time."""
    if not importlib.util.find_spec("torch"):
        progress("PyTorch is not here: left out")
        return []
    progress("PyTorch ...")
    shared = {**os.environ, "WORLD_SIZE": str(given.devices), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--peers"]
    processes = [subprocess.Popen(command, env={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}, text=True,
                                  stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL,
                                  stderr=None if r == 0 else subprocess.DEVNULL) for r in range(given.devices)]
    try:
        printed, _ = processes[0].communicate(timeout=max(1, min(given.limit / 3, given.limit - (time.monotonic() - began))))
    except subprocess.TimeoutExpired:
        progress("PyTorch: no time left")
        for process in processes:
            process.kill()
        printed, _ = processes[0].communicate()
    for process in processes:
        process.kill()
        process.wait()
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{") and line.endswith("}")]
    for row in rows:
        if "failed" in row:
            progress(f"PyTorch, {problem_name(row)}, {row['way']}: {row['failed']}")
    progress(f"PyTorch: {len(rows)} results")
    return [row for row in rows if "ms" in row]


# ---- the programs ----


def run_program(given, direction, heads, *options):
    """Their rows in the form of PyTorch's."""
    name = STAGES[direction]
    command = [f"{given.programs}/{name}/{name}", "--json", "--no-validate", "--batch", "1", "--heads", str(heads[0]), "--kv-heads",
               str(heads[1]), "--head-dim", str(HEAD_DIM), "--dtype", "bf16", *options]
    progress(" ".join(command))
    left = given.limit - (time.monotonic() - began)
    if left < 0:
        progress("left out: no time left")
        return []
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=left)
        printed = run.stdout
        if run.returncode:
            progress(f"exit code {run.returncode}: {run.stderr.strip()}")
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode()
        progress("ended: no time left")
    except OSError as error:
        printed = ""
        progress(f"{error}: make {name}")
    rows = []
    for line in printed.splitlines():
        row = json.loads(line)
        if row["direction"] == direction and row["latency_ms"]:
            variant = row["variant"].split("/")[-1]
            rows.append({"causal": row["causal"], "heads": f"{row['heads']}/{row['kv_heads']}", "seqlen": row["seqlen_q"],
                         "passes": direction, "way": variant if variant == "alone" else f"{variant} {row['settings']}",
                         "ms": row["latency_ms"]})
    for row in rows:
        progress(f"{problem_name(row)}, {row['way']}: {row['ms']:.3f} ms")
    return rows


def run_programs(given):
    rows, lengths, all_devices = [], ",".join(str(n) for n in given.lengths), str(given.devices)
    for heads in given.heads:
        for direction in STAGES:
            rows += run_program(given, direction, heads, "--devices", all_devices, "--seqlen", lengths, "--mask", "causal,full")
    for heads in given.heads:
        for direction in STAGES:
            rows += run_program(given, direction, heads, "--devices", "2", "--seqlen", str(given.lengths[-1]), "--mask", "causal,full",
                                "--variant", "rounds")
            rows += run_program(given, direction, heads, "--devices", all_devices, "--seqlen", lengths, "--causal", "--variant", "rounds",
                                "--chunks", "contiguous")
    return rows


# ---- the table ----


def problem_name(row):
    return f"{'causal' if row['causal'] else 'full'} {row['heads']} S {row['seqlen']} {row['passes']}"


def table(given, ours, before, after):
    def of(rows, problem, passes):
        """The time of each way, added up over the passes."""
        times = [{row["way"]: row["ms"] for row in rows if [row["causal"], row["heads"], row["seqlen"], row["passes"]] == [*problem, one]}
                 for one in passes]
        return {way: sum(each[way] for each in times) for way in times[0] if all(way in each for each in times)}

    def peer(problem, passes):
        fastest = [min(found.values()) for rows in (before, after) if (found := of(rows, problem, [passes]))]
        return statistics.mean(fastest) if fastest else None

    def times_faster(slow, fast):
        return f"{slow / fast:.2f}" if slow and fast else "-"

    def in_ms(ms):
        return f"{ms:.3g}" if ms and ms < 100 else f"{ms:.0f}" if ms else "-"

    print("mask, heads, tokens, pass", "one GPU, ms", "`gather`", "`rounds`, ms", "`rounds`", "contiguous", "two GPUs",
          "PyTorch, ms", "PyTorch over `rounds`", sep="\t")
    for heads, n, causal, passes in itertools.product(given.heads, given.lengths, (True, False), ("forward", "both")):
        problem = [causal, f"{heads[0]}/{heads[1]}", n]
        mine = of(ours, problem, ["forward"] if passes == "forward" else list(STAGES))
        gather, rounds, contiguous, two = (mine.get(f"{way} devices={devices};chunks={chunks}") for way, devices, chunks in [
            ("gather", given.devices, "zigzag"), ("rounds", given.devices, "zigzag"), ("rounds", given.devices, "contiguous"),
            ("rounds", 2, "zigzag")])
        alone, theirs = mine.get("alone"), peer(problem, passes)
        name = f"{'causal' if causal else 'full'}, {problem[1]}, {n:,}, {passes}"
        print(name, in_ms(alone), times_faster(alone, gather), in_ms(rounds), times_faster(alone, rounds), times_faster(alone, contiguous),
              times_faster(alone, two), in_ms(theirs), times_faster(theirs, rounds), sep="\t")


def main():
    given = arguments()
    if given.peers:
        peer_times(given)
        return
    before = run_peers(given)
    ours = run_programs(given)
    table(given, ours, before, run_peers(given) if before else [])


main()
