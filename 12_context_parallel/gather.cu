/* 12_context_parallel/gather - each device has all keys that its queries see copied to it, and then computes alone.
 *
 * The idea. A query needs no other query. So a device that owns two chunks of the queries, and has the keys before
 * them, has a problem that the other stages' kernels know: attention of a chunk, causal and aligned at the end of the
 * keys that its last query sees.
 *
 * What it costs. Memory for the K and V of the whole sequence on every device, and time: nothing is computed while the
 * keys arrive.
 *
 *     make 12_context_parallel && ./12_context_parallel/12_context_parallel --variant gather --causal --devices 4
 */
#include "context.cuh"

#include <cstdlib>

extern "C" Launcher fa2_tuned;
extern "C" Launcher fa3_overlapped;

constexpr int BUFFERS = NEXT_TILE + 1;

extern "C" int plan_shards(const Problem *p, size_t other_keys, Buffer *workspace) {
    const size_t row = p->head_dim * dtype_bytes(p->dtype),
                 rows = (size_t)HALVES * p->batch * p->heads * largest_chunk(p);
    const size_t key_rows = (size_t)2 * p->batch * p->kv_heads;
    workspace[QUERIES] = {"Q shard", rows * row, nullptr, 0};
    workspace[KEYS] = {"K and V shard", key_rows * shard_keys(p) * row, nullptr, 0};
    workspace[OTHER_KEYS] = {"K and V of others", key_rows * other_keys * row, nullptr, 0};
    workspace[OUTPUT] = {"O shard", rows * row, nullptr, 0};
    workspace[LSE] = {"LSE shard", rows * sizeof(float), nullptr, 0};
    workspace[KEY_LENGTHS] = {"key lengths", (devices_of(p) + 1) * (BOTH + 1) * p->batch * sizeof(int), nullptr, 0};
    workspace[NEXT_TILE] = {"next query tile", sizeof(uint32_t), nullptr, 1};
    return BUFFERS;
}

PLANNER(context_gather_plan) { return for_all_devices(p, plan_shards(p, p->seqlen_k, workspace), workspace); }

/* ---- before and after what is timed ---- */

static void write_key_lengths(const Device &d, const int *lengths) {
    if (!device_use(d.number))
        return;
    for (int from = WHOLE; from < devices_of(&d.p); from++)
        for (int rows = 0; rows <= BOTH; rows++) {
            int *seen = keys_of_part(&d.p, lengths, d.number, rows, from);
            device_write(d.key_lengths(from, rows), seen, d.p.batch * sizeof(int));
            free(seen);
        }
}

extern "C" void scatter_inputs(const Problem *p, const Tensors *t, const Buffer *workspace, int buffers,
                               Layout layout) {
    on_each_device(p, workspace, buffers, [=](const Device &d) {
        write_key_lengths(d, t->lengths_on_host);
        move_rows(d, TO_SHARD, layout, (void *)t->q, d.at<char>(QUERIES), d.row_bytes());
        move_keys(d, TO_SHARD, t->lengths_on_host, {(char *)t->k, (char *)t->v, p->seqlen_k, 0}, d.shard());
    });
}

extern "C" void collect_outputs(const Problem *p, const Tensors *t, const Buffer *workspace, int buffers,
                                Layout layout) {
    on_each_device(p, workspace, buffers, [=](const Device &d) {
        move_rows(d, TO_WHOLE, layout, t->o, d.at<char>(OUTPUT), d.row_bytes());
        move_rows(d, TO_WHOLE, layout, t->lse, d.at<char>(LSE), sizeof(float));
    });
}

LAUNCHER(context_gather_scatter) { scatter_inputs(p, t, workspace, BUFFERS, APART); }
LAUNCHER(context_gather_collect) { collect_outputs(p, t, workspace, BUFFERS, APART); }

/* ---- what is timed ---- */

/* One device has it all. */
LAUNCHER(context_alone) { (device_properties()->has_hopper ? fa3_overlapped : fa2_tuned)(p, t, workspace); }

LAUNCHER(context_gather) {
    const int devices = devices_of(p);
    device_fork(devices);
    device_pull_together(1);
    for (int step = 0; step < devices; step++) /* no two devices pull from the same one at the same time */
        for (int r = 0; r < devices; r++) {
            const Device d = device_at(*p, workspace, r, BUFFERS);
            const Device from = device_at(*p, workspace, (r + step) % devices, BUFFERS);
            move_keys(from, TO_WHOLE, t->lengths_on_host, d.keys(OTHER_KEYS, 0, p->seqlen_k), from.shard(),
                      chunk_of(p, r, 1));
        }
    device_pull_together(0);
    for (int r = 0; r < devices; r++) {
        const Device d = device_at(*p, workspace, r, BUFFERS);
        if (!device_use(r))
            continue;
        device_record(COPY, ARRIVED);
        device_wait(COMPUTE, r, ARRIVED);
        device_record(COMPUTE, BEGIN);
        for (int half = 0; half < HALVES; half++) {
            const Problem part = part_of(p, t->lengths_on_host, r, half, WHOLE);
            if (part.seqlen_q > 0)
                attend(d, part, half, WHOLE, d.half_of(QUERIES, half), d.keys(OTHER_KEYS, 0, p->seqlen_k),
                       d.half_of(OUTPUT, half), d.half_of<float>(LSE, half));
        }
        device_record(COMPUTE, END);
    }
    device_join(devices);
}
