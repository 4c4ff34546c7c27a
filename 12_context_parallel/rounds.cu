/* 12_context_parallel/rounds - each device computes with one shard of keys while the next is copied to it.
 *
 * The idea. Attention over some keys, and attention over others, merge by LSE into attention over both
 * (07_flash_decoding). So a device begins with its own shard and needs never more than two shards of others at a time:
 * the one in use, and the one that is on its way.
 *
 *     round              0           1           2           3
 *     device 2, COMPUTE  own shard   shard 1     shard 0     shard 3
 *     device 2, COPY     shard 1     shard 0     shard 3
 *
 * What it costs. O and LSE of a part are merged into a sum in fp32: a part read, the sum read and written, for each
 * round. A part is rounded to 16 bits once, as the output is, and its weight is at most 1.
 *
 *     make 12_context_parallel && ./12_context_parallel/12_context_parallel --variant rounds --causal --devices 4
 */
#include "../common/gpu/eight.cuh"
#include "../common/gpu/softmax.cuh"
#include "context.cuh"

constexpr int BUFFERS = LSE_PART + 1, THREADS = 256;

extern "C" void collect_shards(const Problem *p, const Tensors *t, const Buffer *workspace, int buffers);

PLANNER(context_rounds_plan) {
    const size_t rows = (size_t)p->batch * p->heads * largest_chunk(p), row = p->head_dim;
    plan_shards(p, 2 * shard_keys(p), workspace);
    workspace[O_SUM] = {"O accumulator", HALVES * rows * row * sizeof(float), nullptr, 0};
    workspace[O_PART] = {"partial O", rows * row * dtype_bytes(p->dtype), nullptr, 0};
    workspace[LSE_PART] = {"partial LSE", rows * sizeof(float), nullptr, 0};
    return for_all_devices(p, BUFFERS, workspace);
}

LAUNCHER(context_rounds_scatter) { scatter_shards(p, t, workspace, BUFFERS); }
LAUNCHER(context_rounds_collect) { collect_shards(p, t, workspace, BUFFERS); }

/* Merges a part into `sum` and `lse`, which are overwritten by the first, and writes what O is so far. D / 8 threads
 * take a row. */
template <typename T, int D>
__global__ void __launch_bounds__(THREADS)
    merge_part(size_t rows, const T *part, const float *part_lse, float *sum, float *lse, T *o, bool is_first) {
    const size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x, row = thread / (D / 8);
    const bool exists = row < rows;
    const float lse_before = exists && !is_first ? lse[row] : -INFINITY, lse_part = exists ? part_lse[row] : -INFINITY;
    const float m = shift_of(fmaxf(lse_before, lse_part)), l = expf(lse_before - m) + expf(lse_part - m);
    const float inverse = l > 0 ? 1 / l : 0; /* 0: no key so far, and O = 0 */
    const float old_weight = inverse * expf(lse_before - m), weight = inverse * expf(lse_part - m);
    __syncwarp(); /* the row's threads have read lse */
    if (!exists)
        return;

    float x[8];
    float4 low = {}, high = {};
    load_8(x, part + 8 * thread, true);
    if (!is_first)
        low = load_4(sum + 8 * thread), high = load_4(sum + 8 * thread + 4);
    low = old_weight * low + weight * make_float4(x[0], x[1], x[2], x[3]);
    high = old_weight * high + weight * make_float4(x[4], x[5], x[6], x[7]);
    store_4(sum + 8 * thread, low), store_4(sum + 8 * thread + 4, high);
    store_4(o + 8 * thread, low), store_4(o + 8 * thread + 4, high);
    if (thread % (D / 8) == 0)
        lse[row] = m + logf(l);
}

/* A half's queries with the keys of one shard, which is `keys` here. */
static void compute_part(const Device &d, const Tensors &t, int half, int from, const Keys &keys) {
    const Problem part = part_of(&d.p, t.lengths_on_host, d.number, half, from);
    const size_t rows = row_count(&part);
    const bool is_first = from == d.number; /* its own keys come first: they begin the sum */
    if (rows == 0)
        return;
    attend(d, part, half, from, keys, d.at<void>(O_PART), d.at<float>(LSE_PART));
    WITH_HALF_TYPE(part.dtype, T, WITH_HEAD_DIM_64_128(part.head_dim, D, {
                       LAUNCH((merge_part<T, D>), blocks_for(rows * (D / 8), THREADS), THREADS, 0, rows, d.at<T>(O_PART),
                              d.at<float>(LSE_PART), d.sum(half), d.lse(half), (T *)d.output(half), is_first);
                   }));
}

LAUNCHER(context_rounds) {
    const int devices = devices_of(p);
    device_fork(devices);
    for (int round = 0; round < devices; round++)
        for (int r = 0; r < devices; r++) {
            const Device d = device_at(*p, workspace, r, BUFFERS);
            const int from = (r - round + devices) % devices, next = (from - 1 + devices) % devices;
            device_use(r);
            const Keys keys = begin_round(d, t->lengths_on_host, round, device_at(*p, workspace, next, BUFFERS));
            for (int half = 0; half < HALVES; half++)
                compute_part(d, *t, half, from, keys);
            device_record(COMPUTE, END + round);
        }
    device_join(devices);
}
