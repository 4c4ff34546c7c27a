/* 12_context_parallel/rounds - each device computes with one shard of keys while the next is copied to it.
 *
 * The idea. Attention over some keys, and attention over others, merge by LSE into attention over both
 * (07_flash_decoding). So a device begins with its own shard and needs never more than two shards of others at a time:
 * the one in use, and the one that is on its way.
 *
 *     round              0           1           2           3
 *     device 2, COMPUTE  own shard   shard 1     shard 0     shard 3
 *     device 2, COPY     shards 1, 0             shard 3
 *
 * In a round all queries of a device are one problem, if they see the same keys, so they are stored one behind the
 * other. Of a shard behind it in the sequence only the second half sees all, which is therefore stored once more.
 *
 * What it costs. The own shard's part is written into O. Each later part is merged with what O is so far: that is O
 * itself for the first merge of a row, a sum in fp32 between two merges, and O again after the last. A part is rounded
 * to 16 bits once, as the output is, and its weight is at most 1.
 *
 *     make 12_context_parallel && ./12_context_parallel/12_context_parallel --variant rounds --causal --devices 4
 */
#include "../common/gpu/eight.cuh"
#include "../common/gpu/softmax.cuh"
#include "context.cuh"

constexpr int BUFFERS = LSE_PART + 1, THREADS = 256;

PLANNER(context_rounds_plan) {
    const size_t rows = (size_t)p->batch * p->heads * largest_chunk(p), row = p->head_dim,
                 element = dtype_bytes(p->dtype);
    const int merges = devices_of(p) - 1; /* at most, of a row */
    plan_shards(p, 2 * shard_keys(p), workspace);
    workspace[APART_QUERIES] = {"Q of one half", halves_alone(p) * rows * row * element, nullptr, 0};
    workspace[O_SUM] = {"O accumulator", (merges > 1) * HALVES * rows * row * sizeof(float), nullptr, 0};
    workspace[O_PART] = {"partial O", (merges > 0) * HALVES * rows * row * element, nullptr, 0};
    workspace[LSE_PART] = {"partial LSE", (merges > 0) * HALVES * rows * sizeof(float), nullptr, 0};
    return for_all_devices(p, BUFFERS, workspace);
}

LAUNCHER(context_rounds_scatter) {
    scatter_inputs(p, t, workspace, BUFFERS, TOGETHER);
    on_each_device(p, workspace, BUFFERS, [=](const Device &d) {
        move_rows(d, TO_SHARD, APART, (void *)t->q, d.at<char>(APART_QUERIES), d.row_bytes(), HALVES - halves_alone(p));
    });
}
LAUNCHER(context_rounds_collect) { collect_outputs(p, t, workspace, BUFFERS, TOGETHER); }

/* Where the rows of a part are among all of the device, in each head; and for each half of these, whether the merge is
 * a row's first, or its last. */
struct Merge {
    int queries, first, all, second_half;
    bool is_first[HALVES], is_last[HALVES];
};

/* Merges a part into O and LSE; into `sum`, not O, if merges follow. D / 8 threads take a row, blockIdx.y a head. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS)
    merge_part(Merge merge, const T *part, const float *part_lse, float *sum, float *lse, T *o) {
    constexpr int lanes = D / 8;
    const int in_part = blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes, query = merge.first + in_part,
              lane = threadIdx.x % lanes;
    const bool exists = in_part < merge.queries;
    const int half = query >= merge.second_half;
    const size_t part_row = (size_t)blockIdx.y * merge.queries + in_part,
                 row = (size_t)blockIdx.y * merge.all + query, at = row * D + 8 * lane;
    const float lse_before = exists ? lse[row] : -INFINITY, lse_part = exists ? part_lse[part_row] : -INFINITY;
    const float m = shift_of(fmaxf(lse_before, lse_part)), l = expf(lse_before - m) + expf(lse_part - m);
    const float inverse = l > 0 ? 1 / l : 0; /* 0: no key so far, and O = 0 */
    const float old_weight = inverse * expf(lse_before - m), weight = inverse * expf(lse_part - m);
    __syncwarp(); /* the row's threads have read lse */
    if (!exists)
        return;

    float x[8], y[8];
    load_8(x, part + part_row * D + 8 * lane, true);
    if (merge.is_first[half])
        load_8(y, o + at, true);
    else
        spread(y, load_4(sum + at), load_4(sum + at + 4));
    const float4 low = old_weight * make_float4(y[0], y[1], y[2], y[3]) + weight * make_float4(x[0], x[1], x[2], x[3]);
    const float4 high = old_weight * make_float4(y[4], y[5], y[6], y[7]) + weight * make_float4(x[4], x[5], x[6], x[7]);
    if (merge.is_last[half])
        store_4(o + at, low), store_4(o + at + 4, high);
    else
        store_4(sum + at, low), store_4(sum + at + 4, high);
    if (lane == 0)
        lse[row] = m + logf(l);
}

/* The part of this round, which is in O_PART. */
static void merge(const Device &d, const int *key_lengths, const Problem &part, int rows, int round) {
    const Problem &p = d.p;
    const int first_half = queries_of_rows(&p, d.number, 0), all = queries_of_rows(&p, d.number, BOTH);
    Merge merge = {part.seqlen_q, rows == 1 ? first_half : 0, all, first_half, {}, {}};
    for (int half = 0; half < HALVES; half++) {
        merge.is_first[half] = !sees_in_rounds(&p, key_lengths, d.number, half, 1, round - 1);
        merge.is_last[half] = !sees_in_rounds(&p, key_lengths, d.number, half, round + 1, devices_of(&p) - 1);
    }
    WITH_HALF_TYPE(p.dtype, T, WITH_HEAD_DIM_64_128(p.head_dim, D, {
                       const dim3 blocks(ceil_div(part.seqlen_q, THREADS / (D / 8)), p.batch * p.heads);
                       LAUNCH((merge_part<T, D>), blocks, THREADS, 0, merge, d.at<T>(O_PART), d.at<float>(LSE_PART),
                              d.at<float>(O_SUM), d.at<float>(LSE), d.at<T>(OUTPUT));
                   }));
}

/* Some rows' queries with the keys of one shard, which is `keys` here. */
static void compute_part(const Device &d, const int *key_lengths, int rows, int round, int from, const Keys &keys) {
    const Problem part = part_of(&d.p, key_lengths, d.number, rows, from);
    const void *queries = rows == BOTH ? d.at<char>(QUERIES) : d.half_of(APART_QUERIES, rows);
    if (part.seqlen_q == 0)
        return;
    attend(d, part, rows, from, queries, keys, d.at<void>(round ? O_PART : OUTPUT),
           d.at<float>(round ? LSE_PART : LSE));
    if (round > 0)
        merge(d, key_lengths, part, rows, round);
}

LAUNCHER(context_rounds) {
    const int *lengths = t->lengths_on_host;
    device_fork(devices_of(p));
    const auto compute = [=](const Device &d, int round) {
        const int from = shard_in_round(p, d.number, round);
        const Keys keys = begin_round(d, round);
        const bool is_one = are_one_problem(p, lengths, d.number, from);
        for (int rows = is_one ? BOTH : 0; rows < (is_one ? BOTH + 1 : HALVES); rows++)
            compute_part(d, lengths, rows, round, from, keys);
        device_record(COMPUTE, END + round);
    };
    run_rounds(p, lengths, workspace, BUFFERS, compute, [](const Device &, int) {});
    device_join(devices_of(p));
}
