/* 12_context_parallel_backward/rounds - the gradients of one sequence over several GPUs, in rounds.
 *
 * The idea. A query's gradient is a sum over keys, and its device sees all of them, a shard per round: dQ stays where
 * it is. A key's gradients are sums over queries, which are on all devices. So a device adds up what its queries
 * contribute to the dK and dV of the shard at hand, in fp32, and the shard's owner pulls this part and adds it to its
 * own. P is computed again from the LSE of the whole row, so nothing has to be merged: parts are only added.
 *
 *     round                0             1           2                    3
 *     device 2, COMPUTE    own shard,    shard 1     shard 0; add part    shard 3; add part of device 0;
 *                          half 0                    of device 3          own shard, half 1; add the last part
 *     device 2, COPY       K, V of 1                 K, V of 3; part      part of device 0; part of device 1
 *                          and of 0                  of device 3
 *
 * What it costs. Beside K and V, twice as many bytes for the parts, which have 4 bytes per element. In 16 bits they
 * would need half of that, but each would be rounded, and the sum of G rounded parts is off by more than the result's
 * own rounding. The kernels are 09_fa3_backward's on a Hopper GPU and 05_fa2_backward's elsewhere.
 *
 *     make 12_context_parallel_backward && ./12_context_parallel_backward/12_context_parallel_backward --causal
 */
#include "../12_context_parallel/context.cuh"
#include "../common/gpu/prepare_rows.cuh"
#include "parts.h"

typedef void Steps(const Problem *p, const Tensors *t, const Buffer *workspace, int steps);
extern "C" Steps backward_atomic_steps;
extern "C" Steps fa3_backward_overlapped_steps;
extern "C" Launcher backward_atomic;
extern "C" Launcher fa3_backward_overlapped;

/* Behind those of the forward pass; NEXT_TILE is the counter of key tiles. */
enum { D_OUTPUT = NEXT_TILE + 1, D_QUERIES, D_KEYS, STATISTICS, DQ_SUM, KEY_SUMS, KEY_PARTS, INBOX, BUFFERS };
enum { TAKEN = ARRIVED + 2, ADDED = TAKEN + 2, COMPUTED };
constexpr int THREADS = 256;

static size_t statistics_rows(const Problem *p) { return (size_t)p->batch * p->heads * padded(largest_chunk(p)); }

PLANNER(context_backward_plan) {
    const size_t sums = 2 * sum_floats(p) * sizeof(float), rows = HALVES * statistics_rows(p);
    plan_shards(p, 2 * shard_keys(p), workspace);
    workspace[NEXT_TILE].purpose = "next key tile";
    workspace[D_OUTPUT] = {"dO shard", workspace[QUERIES].bytes, nullptr, 0};
    workspace[D_QUERIES] = {"dQ shard", workspace[QUERIES].bytes, nullptr, 0};
    workspace[D_KEYS] = {"dK and dV shard", workspace[KEYS].bytes, nullptr, 0};
    workspace[STATISTICS] = {"LSE in base 2 and delta", 2 * rows * sizeof(float), nullptr, 0};
    workspace[DQ_SUM] = {"dQ accumulator", rows * p->head_dim * sizeof(float), nullptr, 0};
    workspace[KEY_SUMS] = {"dK and dV sums", sums, nullptr, 1};
    workspace[KEY_PARTS] = {"dK and dV parts", 2 * sums, nullptr, 0};
    workspace[INBOX] = {"dK and dV of others", sums, nullptr, 0};
    return for_all_devices(p, BUFFERS, workspace);
}

static float *part_at(const Device &d, int slot) { return d.at<float>(KEY_PARTS) + slot * 2 * sum_floats(&d.p); }

/* ---- before and after what is timed ---- */

LAUNCHER(context_backward_scatter) {
    scatter_inputs(p, t, workspace, BUFFERS, APART);
    on_each_device(p, workspace, BUFFERS, [=](const Device &d) {
        move_rows(d, TO_SHARD, APART, t->o, d.at<char>(OUTPUT), d.row_bytes());
        move_rows(d, TO_SHARD, APART, t->lse, d.at<char>(LSE), sizeof(float));
        move_rows(d, TO_SHARD, APART, (void *)t->d_o, d.at<char>(D_OUTPUT), d.row_bytes());
    });
}

/* Keys that do not exist are in no shard: their gradients are 0. */
LAUNCHER(context_backward_collect) {
    device_fill(t->dk, 0, key_elements(p) * dtype_bytes(p->dtype));
    device_fill(t->dv, 0, key_elements(p) * dtype_bytes(p->dtype));
    on_each_device(p, workspace, BUFFERS, [=](const Device &d) {
        move_rows(d, TO_WHOLE, APART, t->dq, d.at<char>(D_QUERIES), d.row_bytes());
        move_keys(d, TO_WHOLE, t->lengths_on_host, {(char *)t->dk, (char *)t->dv, p->seqlen_k, 0},
                  d.keys(D_KEYS, 0, shard_keys(p)));
    });
}

/* ---- what is timed ---- */

LAUNCHER(context_backward_alone) {
    (device_properties()->has_hopper ? fa3_backward_overlapped : backward_atomic)(p, t, workspace);
}

__global__ void __launch_bounds__(THREADS) clear_part(float *part, size_t fours) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < fours)
        store_4(part + 4 * i, float4{});
}

__global__ void __launch_bounds__(THREADS) add_part(float *sum, const float *part, size_t fours) {
    const size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < fours)
        store_4(sum + 4 * i, load_4(sum + 4 * i) + load_4(part + 4 * i));
}

/* Some steps of the backward pass (prepare_rows.cuh) of one chunk of queries, with the shard of `from`. */
static void run_steps(const Device &d, const int *key_lengths, int half, const Keys &keys, int from, float *key_sums,
                      int steps) {
    const Problem p = part_of(&d.p, key_lengths, d.number, half, from);
    const Keys gradients = d.keys(D_KEYS, 0, keys.stored);
    Tensors t = {};
    t.q = d.half_of(QUERIES, half), t.k = keys.k, t.v = keys.v, t.o = d.half_of(OUTPUT, half),
    t.lse = d.half_of<float>(LSE, half);
    t.key_lengths = d.key_lengths(from, half), t.d_o = d.half_of(D_OUTPUT, half), t.dq = d.half_of(D_QUERIES, half);
    t.dk = gradients.k, t.dv = gradients.v;
    const size_t rows = statistics_rows(&d.p);
    float *lse = d.at<float>(STATISTICS) + half * 2 * rows, *dq = d.at<float>(DQ_SUM) + half * rows * p.head_dim;
    const Buffer workspace[] = {{"", 0, lse, 0},
                                {"", 0, lse + rows, 0},
                                {"", 0, dq, 0},
                                {"", 0, key_sums, 0},
                                {"", 0, key_sums + sum_floats(&d.p), 0},
                                d.buffers[NEXT_TILE]};
    if (p.seqlen_q > 0 || steps == WRITE_KEYS)
        (device_properties()->has_hopper ? fa3_backward_overlapped_steps : backward_atomic_steps)(&p, &t, workspace,
                                                                                                  steps);
}

/* The same with a device's own shard: the steps before all rounds and after them, and the own part of one half. */
static void run_own_steps(const Device &d, const int *key_lengths, int half, int steps) {
    run_steps(d, key_lengths, half, d.shard(), d.number, d.at<float>(KEY_SUMS), steps);
}

/* Adds the part that the owner of a shard has pulled behind this round, once it has arrived. */
static void add_pulled(const Device &owner, const int *key_lengths, int round) {
    const Problem *p = &owner.p;
    const size_t fours = sum_floats(p) / 2;
    if (round < 1 || !has_part(p, key_lengths, owner.number, (owner.number + round) % devices_of(p)))
        return;
    device_wait(COMPUTE, owner.number, TAKEN + round % 2);
    LAUNCH(add_part, blocks_for(fours, THREADS), THREADS, 0, owner.at<float>(KEY_SUMS), owner.at<float>(INBOX), fours);
    device_record(COMPUTE, ADDED);
}

/* A round's work of a device: what its queries contribute to dQ, and to the dK and dV of a shard. With its own keys the
 * second half of the queries, which sees more of them, computes last: this needs nothing that is copied, so the last
 * part can be pulled meanwhile. */
static void compute_round(const Device &d, const int *key_lengths, int round) {
    const Problem *p = &d.p;
    const int devices = devices_of(p), from = shard_in_round(p, d.number, round), slot = round % 2;
    const size_t fours = sum_floats(p) / 2;
    if (round > 2) /* the part of two rounds before is in the same slot: its owner must have it */
        device_wait(COMPUTE, (from + 2) % devices, TAKEN + slot);
    const Keys keys = begin_round(d, round);
    if (round == 0)
        run_own_steps(d, key_lengths, 0, ADD_GRADIENTS);
    else if (has_part(p, key_lengths, from, d.number)) {
        LAUNCH(clear_part, blocks_for(fours, THREADS), THREADS, 0, part_at(d, slot), fours);
        for (int half = 0; half < HALVES; half++)
            run_steps(d, key_lengths, half, keys, from, part_at(d, slot), ADD_GRADIENTS);
        device_record(COMPUTE, COMPUTED);
    }
    add_pulled(d, key_lengths, round - 1);
    if (round + 1 == devices)
        run_own_steps(d, key_lengths, 1, ADD_GRADIENTS);
    device_record(COMPUTE, END + round);
}

/* The owner of a shard pulls the part that another device has computed in this round. */
static void pull_part(const Device &owner, const int *key_lengths, int round, const Device &other) {
    const size_t bytes = 2 * sum_floats(&owner.p) * sizeof(float);
    if (round < 1 || !has_part(&owner.p, key_lengths, owner.number, other.number))
        return;
    device_wait(COPY, other.number, COMPUTED);
    device_wait(COPY, owner.number, ADDED); /* the part before is no longer needed */
    device_pull(owner.at<void>(INBOX), bytes, other.number, part_at(other, round % 2), bytes, bytes, 1);
    device_record(COPY, TAKEN + round % 2);
}

LAUNCHER(context_backward) {
    const int devices = devices_of(p), *lengths = t->lengths_on_host;
    const auto at = [&](int r) { return device_at(*p, workspace, r % devices, BUFFERS); };
    device_fork(devices);
    const auto compute = [&](const Device &d, int round) {
        for (int half = 0; half < HALVES && round == 0; half++)
            run_own_steps(d, lengths, half, PREPARE_ROWS);
        compute_round(d, lengths, round);
    };
    const auto pull = [&](const Device &d, int round) { pull_part(d, lengths, round, at(d.number + round)); };
    run_rounds(p, lengths, workspace, BUFFERS, compute, pull);
    for (int r = 0; r < devices; r++) {
        if (!device_use(r))
            continue;
        for (int half = 0; half < HALVES; half++)
            run_own_steps(at(r), lengths, half, WRITE_DQ);
        add_pulled(at(r), lengths, devices - 1);
        run_own_steps(at(r), lengths, 0, WRITE_KEYS);
    }
    device_join(devices);
}
