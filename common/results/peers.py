#!/usr/bin/env python3
"""A stage's program beside the vendor's kernels, shape by shape, on one GPU, in one run.

    python3 common/results/peers.py forward                       04_fa2/tuned, fp16
    python3 common/results/peers.py forward --dtype bf16 --program 08_fa3/08_fa3
    python3 common/results/peers.py backward | decode | fp8
    python3 common/results/peers.py sparse                        10_block_sparse's kernels
    python3 common/results/peers.py score                         11_score_mod/fused
    python3 common/results/peers.py ladder | ladder8              the peers alone, on the ladder's problems, as rows of JSON

Needs a GPU, the stage built for it (make all), and PyTorch; fp8 needs JAX instead. Nothing else in the project needs either.
What it prints is what notes/results/<device>/forward_fp16.txt and its like hold: latency and speed of the program, then speed of
each peer and how many times longer the peer takes (above 1: the program is faster). What stands behind in percent is the spread:
how far the middle half of the runs lies apart, of their median. Peers that this GPU or PyTorch does not have are named and left out.

The peers: `flash` is FlashAttention-2 and `cudnn` cuDNN's attention, both as PyTorch's scaled_dot_product_attention calls them.
`cudnn-fp8` is cuDNN's 8-bit attention through JAX, where there are no events: its kernels' own times, from JAX's profiler. They are
shorter by the start of a kernel, two or three microseconds. Neither side's time has the conversion to 8 bits in it. `fa3` is
FlashAttention-3: --fa3 takes the file flash_attn_3/_C.so of the Python package xformers 0.0.34.

`flex` is PyTorch's FlexAttention, compiled. It and 10_block_sparse are given the same random blocks, as lists and as --blocks file:;
neither side's time has the making of lists in it, which has lines of its own. Where all blocks are kept, `dense` is the kernel
that knows no lists: 04_fa2/tuned, 08_fa3/overlapped. At D = 64 the latter has three consumers, and 10_block_sparse two: --two takes
a program of 08_fa3 whose Roles has two there. For each D the one of TILINGS is taken that is faster at the first length.

forward and backward time rows with as many K/V heads as query heads, and rows in which query heads share K/V heads, as in today's
models: 64/8 means 64 query heads and 8 K/V heads. --heads 64/8,8/1 times those alone, --heads equal the others. The rows
`low` have scores near -20: constants are added to Q and to K, so that kernels whose work depends on the scores show it.

For `score` FlexAttention is given the same change to a score as a score_mod, and the causal mask and the window as a block mask; its
tanh is PyTorch's. `base` is 04_fa2/tuned, causal, and the lines with # say what each f costs beside `fused` without one, and which
instructions FlexAttention's kernels have for products and for the special function unit, if cuobjdump is there.

Each peer is timed before and after the program and the two are averaged, so that a clock that falls with the board's power falls
for both. All other inputs are N(0,1). Each figure is a median of runs that each start with a cold L2 cache.
"""
import argparse
import collections
import ctypes
import glob
import itertools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TOKENS, HIDDEN = 16384, 2048  # of all batch entries; of all heads
PROGRAMS = {"forward": "04_fa2/04_fa2", "backward": "05_fa2_backward/05_fa2_backward", "decode": "07_flash_decoding/07_flash_decoding",
            "fp8": "06_fp8/06_fp8", "sparse": "10_block_sparse/10_block_sparse",
            "score": "11_score_mod/11_score_mod", "ladder": "04_fa2/04_fa2", "ladder8": "06_fp8/06_fp8"}
LENGTHS = {"equal": {64: [512, 2048, 4096, 16384], 128: [512, 2048, 4096, 16384]}, "64/8": {64: [4096, 16384], 128: [4096, 16384]},
           "32/8": {128: [8192]}, "8/1": {128: [20480]}, "low": {64: [4096], 128: [4096]}}  # heads: head dim: lengths
DECODING = [(1, 16, 16, 8192, 64), (1, 16, 16, 65536, 64), (1, 32, 8, 8192, 128), (1, 32, 8, 65536, 128), (8, 32, 8, 8192, 128),
            (32, 32, 8, 8192, 128)]  # batch, query heads, K/V heads, keys, head dim
BLOCK, SHARES = 128, [1, 1 / 2, 1 / 8, 1 / 32]  # of a mask of blocks: the queries and keys of each, and how many are kept
CAP, WINDOW = 30, 1024  # of a soft cap; keys before the query's own
PAUSE = 0.3  # seconds before a peer is timed: the program rests as long, while its process starts
TILINGS = [{}, {"USE_TMA": True}]  # FlexAttention's kernel_options: what it chooses by itself, and loads by TMA


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(PROGRAMS))
    parser.add_argument("--program", help="the stage's program, if not " + ", ".join(PROGRAMS.values()))
    parser.add_argument("--variant", help="if not the last one that the program's --help lists")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default="fp16")
    parser.add_argument("--fa3", metavar="FILE", help="time FlashAttention-3 as well: its _C.so")
    parser.add_argument("--two", metavar="FILE", help="sparse: 08_fa3 with two consumers at D = 64")
    parser.add_argument("--heads", metavar="H,H,...", type=heads_list, default=list(LENGTHS),
                        help="forward, backward: " + ",".join(LENGTHS) + " if not given; or others, such as 16/4")
    parser.add_argument("--lengths", metavar="N,N,...", type=lambda text: [int(n) for n in text.split(",")],
                        help="sparse: 4096,16384,65536 if not given; score: 4096,16384; forward, backward: the lengths of equal, and of "
                             "heads not in the list above")
    given = parser.parse_args()
    if given.what in ("sparse", "score"):
        given.lengths = given.lengths or ([4096, 16384, 65536] if given.what == "sparse" else [4096, 16384])
    given.program = os.path.join(".", given.program or PROGRAMS[given.what])
    if not os.path.exists(given.program):
        parser.error(f"{given.program} is not there: make all DEVICE=cuda")
    given.variant = given.variant or last_variant(given.program)
    return given


def heads_list(text):
    for heads in text.split(","):
        q, slash, kv = heads.partition("/")
        if heads not in LENGTHS and not (slash and q.isdigit() and kv.isdigit() and int(kv) > 0 and int(q) % int(kv) == 0):
            raise argparse.ArgumentTypeError(f"{heads}: choose from {', '.join(LENGTHS)} or Q/KV, where KV divides Q")
    return text.split(",")


def last_variant(program):
    """--help lists the stage's variants, 00_naive aside, in the order of the lesson."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    lines = text.split("\nvariants\n")[1].split("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] != "00_naive"][-1]


def program_rows(given, **shape):
    """Of the program's variant, or of all, and of what prepares it: its median in ms and its spread. With causal=True the option is a
    flag."""
    command = [given.program, "--json", "--no-validate"] + (["--variant", given.variant] if given.variant else [])
    for name, value in shape.items():
        if value is not False:
            command += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    run = subprocess.run(command, capture_output=True, text=True)
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    direction = "backward" if given.what == "backward" else "forward"
    mine = {row["variant"].split("/")[-1]: (row["latency_ms"], (row["iqr_ms"] or 0) / row["latency_ms"])
            for row in rows if row["latency_ms"] and row["direction"] in (direction, "prepare")}
    if run.returncode or not mine or (given.variant and given.variant not in mine):
        sys.exit(f"{' '.join(command)}: exit code {run.returncode}\n{run.stdout}{run.stderr.rstrip()}")
    return mine


def program_ms(given, **shape):
    """The program's own median, in ms, and its spread."""
    return program_rows(given, **shape)[given.variant]


def timed_runs(work, runs, cold):
    events = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if cold is not None:
            cold.zero_()
        start.record()
        work()
        end.record()
        if cold is None:
            end.synchronize()
        events.append((start, end))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def gpu_ms(work, cold=None):
    """The median of `work`'s runs, and their spread. `cold` is a tensor larger than L2, which is overwritten before each run; nobody
    waits between these runs, so that Python prepares one while the GPU is busy with another. Without `cold` the GPU is idle before
    each run, as it is before the program's own CUDA graphs."""
    time.sleep(PAUSE)
    warm_up, runs = as_many(statistics.median(timed_runs(work, 5, cold)))
    return median_and_spread(timed_runs(work, warm_up + runs, cold)[warm_up:])


def as_many(ms):
    """How often the program runs a kernel that takes so long: 100 ms to warm up, then 100 ms. (A short burst meets a higher clock.)"""
    return math.ceil(100 / ms), min(100, max(5, math.ceil(100 / ms)))


def median_and_spread(times):
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / middle


ratios = {}


def print_row(given, name, work, unit, peers, program, also=""):
    """work: FLOPs or bytes; peers: name -> function that returns ms and spread; program: the same of the program; also: see
    print_times."""
    before = {peer: measure() for peer, measure in peers.items()}
    mine = program()
    print_times(given.variant, name, work, unit, mine, {peer: (before[peer], measure()) for peer, measure in peers.items()},
                also=also)


def print_times(variant, name, work, unit, program, peers, of="", also=""):
    """program: its time and spread; peers: name -> as many of them as were taken; of: before a peer's name, where these rows have a
    mean of their own; also: the same, where that is a second mean."""
    scale, (mine, spread) = 1e9 if unit == "TF" else 1e6, program
    line = f"{name:<36} {variant} {mine:8.4f} ms {work / mine / scale:7.1f} {unit} {100 * spread:4.1f} %"
    times = {peer: statistics.mean(ms for ms, _ in taken) for peer, taken in peers.items()}
    if len(times) > 1 and not of:
        times["better"] = min(times.values())  # the better peer, in each row
    for peer, ms in times.items():
        for mean in [of + peer] + [also + peer] * bool(also):
            ratios.setdefault(mean, []).append(ms / mine)
        line += f"  | {peer:<6} {work / ms / scale:7.1f}  x{ms / mine:.3f}"
        line += f" {100 * max(spread for _, spread in peers[peer]):4.1f} %" if peer in peers else ""
    print(line, flush=True)


def normal(given, *shape):
    return torch.randn(*shape, device="cuda", dtype=torch.float16 if given.dtype == "fp16" else torch.bfloat16)


def with_backend(backend, work):
    def run():
        with sdpa_kernel([backend]):
            return work()
    return run


def fa3(q, k, v, causal, splits=1):
    """FlashAttention-3 wants [batch, seqlen, heads, head_dim]; splits 0: it chooses."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.ops.flash_attn_3.fwd(q, k, v, softmax_scale=q.shape[-1] ** -0.5, is_causal=causal, num_splits=splits)


def fa3_backward(q, k, v, do, causal):
    o, lse = fa3(q, k, v, causal)[:2]
    operands = [x.transpose(1, 2) for x in (do, q, k, v)]
    gradients = [torch.empty_like(x) for x in operands[1:]]
    return lambda: torch.ops.flash_attn_3.bwd(*operands, o, lse, *gradients, softmax_scale=q.shape[-1] ** -0.5, is_causal=causal)


def training_peers(given, backward, q, k, v, do, causal, cold):
    """Of one problem: a function each that times it."""
    x = [tensor.detach() for tensor in (q, k, v, do)]
    q, k, v = (tensor.detach().requires_grad_(backward) for tensor in (q, k, v))

    def attention():
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])

    def timed():
        if not backward:
            return gpu_ms(attention, cold)
        o = attention()
        return gpu_ms(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), cold)

    peers = {name: with_backend(backend, timed) for name, backend in BACKENDS.items()}
    if given.fa3:
        peers["fa3"] = lambda: gpu_ms(fa3_backward(*x, causal) if backward else lambda: fa3(*x[:3], causal), cold)
    return peers


def training_tensors(given, batch, heads, kv_heads, n, d):
    """Q, K, V, dO"""
    return [normal(given, batch, h, n, d) for h in (heads, kv_heads, kv_heads, heads)]


def training(given):
    """forward and backward"""
    cold = torch.empty(2**28, device="cuda", dtype=torch.uint8)
    backward = given.what == "backward"
    for heads in given.heads:
        lengths = LENGTHS.get(heads) or {d: given.lengths or [4096, 16384] for d in (64, 128)}
        if heads == "equal" and given.lengths:
            lengths = {d: given.lengths for d in lengths}
        for d, causal, n in [(d, causal, n) for d in lengths for causal in (False, True) for n in lengths[d]]:
            batch, (h, kv) = 1, (int(x) for x in heads.split("/")) if "/" in heads else (HIDDEN // d, HIDDEN // d)
            if heads == "equal":
                batch = max(1, TOKENS // n)
            x = training_tensors(given, batch, h, kv, n, d)
            shape = dict(dtype=given.dtype, causal=causal)
            if heads == "low":
                x[0] += (20 / d**0.5) ** 0.5  # scale q.k is -20 in the mean
                x[1] -= (20 / d**0.5) ** 0.5
                shape["load"] = save(x)
            else:
                shape |= dict(batch=batch, heads=h, kv_heads=kv, seqlen=n, head_dim=d)
            name = " ".join([f"D{d} {'causal' if causal else 'full'} S{n} B{batch}"] + [heads] * (heads != "equal") + [given.dtype])
            print_row(given, name, training_flops(backward, batch, h, n, d, causal), "TF",
                      training_peers(given, backward, *x, causal, cold), lambda: program_ms(given, **shape),
                      "grouped/" if "/" in heads else "")
            if "load" in shape:
                shutil.rmtree(shape["load"])


def save(tensors):
    """The folder in which the program finds them with --load."""
    folder = tempfile.mkdtemp()
    for name, tensor in zip(("q", "k", "v", "do"), tensors):
        numpy.save(os.path.join(folder, name + ".npy"), tensor.float().cpu().numpy())
    return folder


def training_flops(backward, batch, heads, n, d, causal):
    return 4 * batch * heads * n * n * d * (0.5 if causal else 1) * (2.5 if backward else 1)


def decode_peers(given, batch, heads, kv_heads, keys, d):
    """One query. As the program does, a CUDA graph goes over copies of the inputs that together are larger than L2."""
    copies = [(normal(given, batch, heads, 1, d), normal(given, batch, kv_heads, keys, d), normal(given, batch, kv_heads, keys, d))
              for _ in range(math.ceil(256e6 / kv_bytes(batch, kv_heads, keys, d)))]

    def replay(attention):
        for copy in copies:
            attention(*copy)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for copy in copies:
                attention(*copy)
        ms, spread = gpu_ms(graph.replay)
        return ms / len(copies), spread

    def sdpa(q, k, v):
        return scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads)

    peers = {name: with_backend(backend, lambda: replay(sdpa)) for name, backend in BACKENDS.items()}
    if given.fa3:
        peers["fa3"] = lambda: replay(lambda q, k, v: fa3(q, k, v, False, splits=0))
    return peers


def kv_bytes(batch, kv_heads, keys, d):
    return 2 * batch * kv_heads * keys * d * 2


def decode(given):
    for batch, heads, kv_heads, keys, d in DECODING:
        print_row(given, f"B{batch} H{heads}/{kv_heads} L{keys} D{d}", kv_bytes(batch, kv_heads, keys, d), "GB/s",
                  decode_peers(given, batch, heads, kv_heads, keys, d),
                  lambda: program_ms(given, batch=batch, heads=heads, kv_heads=kv_heads, seqlen=1, seqlen_k=keys, head_dim=d,
                                     dtype=given.dtype))


def print_json(variant, shape, speed, measured):
    """A row as the programs' --json has it, for common/results/rounds.pl."""
    ms, spread = measured
    row = {"stage": "peers", "variant": variant, "direction": "peer", **shape, "latency_ms": ms, "iqr_ms": spread * ms, **speed(ms)}
    print(json.dumps(row), flush=True)


def ladder(given):
    """Every peer on the ladder's problems."""
    cold = torch.empty(2**28, device="cuda", dtype=torch.uint8)
    for backward, causal in itertools.product((False, True), (False, True)):
        shape = dict(batch=4, heads=16, n=4096, d=128, causal=causal)
        x = training_tensors(given, 4, 16, 16, 4096, 128)
        for name, measure in training_peers(given, backward, *x, causal, cold).items():
            print_json(f"{name} {'backward' if backward else 'forward'}{' causal' if causal else ''}", shape,
                       lambda ms: {"tflops": training_flops(backward, **shape) / ms / 1e9}, measure())
    shape = dict(batch=1, heads=32, kv_heads=8, keys=65536, d=128)
    for name, measure in decode_peers(given, **shape).items():
        print_json(f"{name} decode", shape, lambda ms: {"gbps": kv_bytes(1, 8, 65536, 128) / ms / 1e6}, measure())


def kept_blocks(n, share):
    """As many of the mask's n / BLOCK squared blocks as `share` says, drawn from all, as a table of bools."""
    side = n // BLOCK
    kept = torch.zeros(side * side, dtype=torch.bool)
    kept[torch.randperm(side * side, generator=torch.Generator().manual_seed(1))[: round(share * side * side)]] = True
    return kept.view(side, side)


def block_lists(kept):
    """Of each row of blocks how many are kept, and their numbers first among all: lists of full blocks. No block is partial."""
    counts = kept.sum(-1, dtype=torch.int32)[None, None]
    numbers = torch.argsort(kept.to(torch.int8), dim=-1, descending=True, stable=True).to(torch.int32)[None, None]
    n = kept.shape[0] * BLOCK
    return BlockMask.from_kv_blocks(torch.zeros_like(counts), numbers, counts, numbers, BLOCK_SIZE=BLOCK, seq_lengths=(n, n))


def flex_timer(compiled, cold, q, k, v, options, **change):
    """A function that times FlexAttention as a CUDA graph, as the program times itself: Python takes longer than short kernels."""
    def attention():
        return compiled(q, k, v, kernel_options=options, **change)
    attention()  # compiles
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        attention()
    return lambda: gpu_ms(graph.replay, cold)


def sparse(given):
    """All variants at once. At 65536 a run takes seconds, so density 1 is left out there."""
    cold = torch.empty(2**28, device="cuda", dtype=torch.uint8)
    table = os.path.join(tempfile.mkdtemp(), "blocks.npy")
    compiled = torch.compile(flex_attention, dynamic=False)
    for d in (64, 128):
        heads, tiling = HIDDEN // d, None
        dense = {"skipping": ("./04_fa2/04_fa2", "tuned"), "overlapped": (d == 64 and given.two or "./08_fa3/08_fa3", "overlapped")}
        for n, share in itertools.product(given.lengths, SHARES):
            if share == 1 and n > 2**15:
                continue
            kept = kept_blocks(n, share)
            numpy.save(table, kept.numpy())
            kept = kept.cuda()
            lists = block_lists(kept)
            q, k, v = (normal(given, 1, heads, n, d) for _ in range(3))

            def flex(options):
                return flex_timer(compiled, cold, q, k, v, options, block_mask=lists)

            if tiling is None:
                times = [flex(options)()[0] for options in TILINGS]
                tiling = TILINGS[times.index(min(times))]
                print(f"# D{d} S{n} flex:", ", ".join(f"{options or 'by itself'} {ms:.4f} ms" for options, ms in zip(TILINGS, times)))
            flex_ms = flex(tiling)
            shape = dict(batch=1, heads=heads, seqlen=n, head_dim=d, dtype=given.dtype)
            before = flex_ms()
            mine = program_rows(argparse.Namespace(what="sparse", program=given.program, variant=None), blocks=f"file:{table}", **shape)
            base = {variant: program_ms(argparse.Namespace(what="sparse", program=program, variant=kernel), **shape)
                    for variant, (program, kernel) in dense.items()} if share == 1 else {}
            peer = (before, flex_ms())
            name = f"D{d} 1/{round(1 / share)} S{n} B1 {given.dtype}"
            for variant in ("masked", "skipping", "overlapped"):
                times = {"flex": peer} | ({"dense": [base[variant]]} if variant in base else {})
                print_times(variant, name, 4 * d * heads * int(kept.sum()) * BLOCK**2, "TF", mine[variant], times,
                            f"{variant}{'-all' if share == 1 else ''}/")
            print(f"# {name} lists: {mine['lists'][0]:.4f} ms | flex {gpu_ms(lambda: block_lists(kept), cold)[0]:.4f}", flush=True)
    shutil.rmtree(os.path.dirname(table))


def score_mods(heads):
    """--score -> FlexAttention's score_mod, and whether there is a window. All are causal."""
    slopes = torch.exp2(-8 / heads * torch.arange(1, heads + 1, device="cuda"))

    def softcap(score, batch, head, query, key):
        return CAP * torch.tanh(score / CAP)

    def alibi(score, batch, head, query, key):
        return score - slopes[head] * (query - key)
    return {"none": (None, False), f"softcap:{CAP}": (softcap, False), "alibi": (alibi, False), f"window:{WINDOW},0": (None, True),
            f"softcap:{CAP}+window:{WINDOW},0": (softcap, True)}


def sees(batch, head, query, key):
    return query >= key


def sees_near(batch, head, query, key):
    return (query >= key) & (query - key <= WINDOW)


def score(given):
    """Each f at each length. A row of the kernel without an f comes first, and the others' costs are measured by it."""
    cold = torch.empty(2**28, device="cuda", dtype=torch.uint8)
    compiled = torch.compile(flex_attention, dynamic=False)
    tuned = argparse.Namespace(what="score", program="./04_fa2/04_fa2", variant="tuned")
    for d, n in itertools.product((64, 128), given.lengths):
        batch, heads, none = max(1, TOKENS // n), HIDDEN // d, None
        shape = dict(batch=batch, heads=heads, seqlen=n, head_dim=d, dtype=given.dtype, causal=True)
        q, k, v = (normal(given, batch, heads, n, d) for _ in range(3))
        for name, (mod, has_window) in score_mods(heads).items():
            change = dict(score_mod=mod, block_mask=create_block_mask(sees_near if has_window else sees, None, None, n, n))
            timers = [flex_timer(compiled, cold, q, k, v, options, **change) for options in TILINGS]
            before = [timer() for timer in timers]
            best = min(range(len(timers)), key=lambda i: before[i][0])
            mine = program_ms(given, **shape, **({} if name == "none" else {"score": name}))
            taken = {"flex": (before[best], timers[best]())} | ({"base": [program_ms(tuned, **shape)]} if name == "none" else {})
            reach = min(n, WINDOW + 1) if has_window else n  # keys that a query sees at most
            pairs = reach * (reach + 1) / 2 + (n - reach) * reach
            print_times(given.variant, f"D{d} {name} S{n} B{batch} {given.dtype}", 4 * batch * heads * d * pairs, "TF", mine, taken, f"{name}/")
            ratios.setdefault("flex", []).append(statistics.mean(ms for ms, _ in taken["flex"]) / mine[0])
            none = none or mine[0]
            print(f"# D{d} {name} S{n}: {mine[0] / none:.3f} times as long as without | flex: "
                  + ", ".join(f"{options or 'by itself'} {ms:.4f} ms" for options, (ms, _) in zip(TILINGS, before)), flush=True)
    print_instructions()


def print_instructions():
    """What the kernels that Triton compiled for FlexAttention have of the tensor cores' and the special function unit's instructions."""
    for path in sorted(glob.glob(os.path.join(os.environ["TRITON_CACHE_DIR"], "**", "*.cubin"), recursive=True)):
        if "flex" not in os.path.basename(path) and "tem" not in os.path.basename(path):
            continue
        try:
            code = subprocess.run(["cuobjdump", "-sass", path], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"# no instructions: {error}")
            return
        found = collections.Counter(re.findall(r"\b(HGMMA|HMMA|MUFU\.\w+)", code))
        print(f"# {os.path.basename(path)}:", ", ".join(f"{count} {name}" for name, count in sorted(found.items())))


def fp8(given):
    """cuDNN's 8-bit attention has no public function; JAX has an internal one. The inputs are cast to e4m3, all scales are 1."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the program needs memory, too
    os.environ["XLA_FLAGS"] = "--xla_gpu_enable_command_buffer="  # kernels one by one, as the profiler knows them
    import jax
    import jax.numpy as jnp
    from jax._src.cudnn import fused_attention_stablehlo as cudnn
    names = [f"amax_{x}" for x in ("dQ", "dK", "dV", "dP")] + [f"descale_{x}" for x in ("q", "k", "v", "s", "o", "dO", "dP")]
    names += [f"scale_{x}" for x in ("s", "o", "dQ", "dK", "dV", "dP")]
    ones = {name: jnp.ones((1, 1, 1, 1), jnp.float32) for name in names}
    flush = jax.jit(lambda x: x + 1, donate_argnums=0)
    cold = [jnp.zeros(2**26)]  # 256 MiB
    d = 128

    def kernels(work):
        """The kernels that the GPU ran meanwhile, in order: name and ms."""
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                work()
            (file,) = glob.glob(folder + "/**/*.xplane.pb", recursive=True)
            planes = [plane for plane in jax.profiler.ProfileData.from_file(file).planes if plane.name.startswith("/device:GPU")]
            events = [(event.start_ns, event.name, event.duration_ns / 1e6)
                      for plane in planes for line in plane.lines if line.name.startswith("Stream") for event in line.events]
        return [(name, ms) for _, name, ms in sorted(events)]

    for causal in (False, True):
        for n in ((4096,) if given.what == "ladder8" else (2048, 4096, 8192, 16384)):
            batch, heads = TOKENS // n, HIDDEN // d
            inputs = [jax.random.normal(key, (batch, n, heads, d), jnp.bfloat16).astype(jnp.float8_e4m3fn)
                      for key in jax.random.split(jax.random.key(0), 3)]
            mask = cudnn.MaskType.CAUSAL if causal else cudnn.MaskType.NO_MASK
            attention = jax.jit(lambda q, k, v: cudnn.dot_product_attention(q, k, v, scale=d**-0.5, mask_type=mask, use_fp8=True,
                                                                            fp8_params=ones))
            own = {}  # the kernels of one call, and its ms

            def timed():
                def work(calls):
                    for _ in range(calls):
                        cold[0] = flush(cold[0])
                        o = attention(*inputs)[0]
                    o.block_until_ready()

                if not own:
                    work(1)  # compiles
                    seen = kernels(lambda: attention(*inputs)[0].block_until_ready())
                    own.update(names=[name for name, _ in seen], ms=sum(ms for _, ms in seen))
                warm_up, runs = as_many(own["ms"])
                mine = [ms for name, ms in kernels(lambda: work(warm_up + runs)) if name in own["names"]]
                each = len(own["names"])
                if len(mine) != (warm_up + runs) * each:
                    sys.exit(f"JAX's profiler saw {len(mine)} kernels in {warm_up + runs} calls of {own['names']}")
                return median_and_spread([sum(mine[i : i + each]) for i in range(warm_up * each, len(mine), each)])

            flops = training_flops(False, batch, heads, n, d, causal)
            shape = dict(batch=batch, heads=heads, seqlen=n, head_dim=d, causal=causal)
            if given.what == "ladder8":
                print_json("cudnn-fp8" + (" causal" if causal else ""), shape, lambda ms: {"tflops": flops / ms / 1e9}, timed())
            else:
                print_row(given, f"D{d} {'causal' if causal else 'full'} S{n} B{batch}", flops, "TF", {"cudnn-fp8": timed},
                          lambda: program_ms(given, **shape))


given = arguments()
if given.what in ("fp8", "ladder8"):
    fp8(given)
else:
    if given.what == "score":  # where the kernels are found that Triton compiles
        os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp()
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention
    BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    if given.fa3:  # it was built for CUDA 12, whose runtime library must lie beside it
        folder = os.path.dirname(os.path.abspath(given.fa3))
        ctypes.CDLL(os.path.join(folder, "libcudart.so.12"), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(os.path.join(folder, os.path.basename(given.fa3)))
    for name in list(BACKENDS):
        try:
            x = normal(given, 1, 1, 128, 64)
            with_backend(BACKENDS[name], lambda: scaled_dot_product_attention(x, x, x))()
        except RuntimeError as error:
            print(f"# no {name}: {str(error).splitlines()[0][:90]}")
            del BACKENDS[name]
    import numpy
    if given.what == "sparse":
        from torch.nn.attention.flex_attention import BlockMask, flex_attention
        torch._dynamo.config.recompile_limit = 64  # one program a length, head dim and tiling
    if given.what == "score":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        torch._dynamo.config.recompile_limit = 64
    {"decode": decode, "score": score, "sparse": sparse, "ladder": ladder}.get(given.what, training)(given)
for peer, all_rows in ratios.items():
    print(f"geometric mean against {peer:<10} x{statistics.geometric_mean(all_rows):.3f}   worst x{min(all_rows):.3f}")
