/* context.cuh - what both variants share: a device's buffers, copies of keys between devices, and attention of a chunk
 * of queries, which is a launch of 08_fa3's kernel on a Hopper GPU and of 04_fa2's elsewhere. */
#ifndef FA_CONTEXT_CUH
#define FA_CONTEXT_CUH

#include "../common/gpu/kernel.cuh"
#include "shards.h"

/* Rows of Q, O or LSE on a device: [batch, heads, queries of both halves, ...], or each half like this on its own, the
 * second half first, because the first may not be stored. */
enum Layout { TOGETHER, APART };

/* gather.cu */
extern "C" Launcher context_alone;
extern "C" int plan_shards(const Problem *p, size_t other_keys, Buffer *workspace);
extern "C" void scatter_inputs(const Problem *p, const Tensors *t, const Buffer *workspace, int buffers, Layout layout);
extern "C" void collect_outputs(const Problem *p, const Tensors *t, const Buffer *workspace, int buffers,
                                Layout layout);

/* Of each device, in the order of its workspace. The last four are for `rounds`. */
enum { QUERIES, KEYS, OTHER_KEYS, OUTPUT, LSE, KEY_LENGTHS, NEXT_TILE, APART_QUERIES, O_SUM, O_PART, LSE_PART };

/* K and V on a device, each [batch, kv_heads, stored, D]. */
struct Keys {
    char *k, *v;
    int stored, device;
};

/* A device's part of the workspace. */
struct Device {
    const Problem &p;
    int number;
    const Buffer *buffers;

    template <typename T> T *at(int purpose) const { return static_cast<T *>(buffers[purpose].pointer); }
    size_t row_bytes() const { return p.head_dim * dtype_bytes(p.dtype); }
    /* APART: before this half */
    size_t rows_before(int half) const { return half ? 0 : (size_t)p.batch * p.heads * largest_chunk(&p); }
    template <typename T = char> T *half_of(int purpose, int half) const {
        return (T *)(at<char>(purpose) + rows_before(half) * (purpose == LSE ? sizeof(float) : row_bytes()));
    }
    /* The `slot`-th K and V of a buffer. */
    Keys keys(int purpose, int slot, int stored) const {
        const size_t bytes = (size_t)p.batch * p.kv_heads * stored * row_bytes();
        char *k = at<char>(purpose) + 2 * slot * bytes;
        return {k, k + bytes, stored, number};
    }
    Keys shard() const { return keys(KEYS, 0, shard_keys(&p)); }
    /* How many keys of each batch entry the rows see, of the shard of `from` or of the WHOLE sequence. */
    int *key_lengths(int from, int rows) const {
        return at<int>(KEY_LENGTHS) + ((from - WHOLE) * (BOTH + 1) + rows) * p.batch;
    }
};
static inline Device device_at(const Problem &p, const Buffer *workspace, int number, int buffers) {
    return {p, number, workspace + number * buffers};
}

template <typename Work> void on_each_device(const Problem *p, const Buffer *workspace, int buffers, Work work) {
    device_fork(devices_of(p));
    device_pull_together(1);
    for (int r = 0; r < devices_of(p); r++)
        work(device_at(*p, workspace, r, buffers));
    device_pull_together(0);
    device_join(devices_of(p));
}

/* Each device has as much as device 0, whose buffers have been planned. Returns how many there are. */
static inline int for_all_devices(const Problem *p, int buffers, Buffer *workspace) {
    for (int i = buffers; i < devices_of(p) * buffers; i++)
        workspace[i] = workspace[i % buffers];
    return devices_of(p) * buffers;
}

/* Pulls `count` keys of a batch entry: those of `from` from key `first` on, to `to` from key to_first on. */
static inline void pull_keys(const Problem &p, int batch, const Keys &to, int to_first, const Keys &from, int first,
                             int count) {
    const size_t row = p.head_dim * dtype_bytes(p.dtype), heads = p.kv_heads;
    const size_t to_offset = (batch * heads * to.stored + to_first) * row,
                 offset = (batch * heads * from.stored + first) * row;
    device_use(to.device);
    device_pull(to.k + to_offset, to.stored * row, from.device, from.k + offset, from.stored * row, count * row, heads);
    device_pull(to.v + to_offset, to.stored * row, from.device, from.v + offset, from.stored * row, count * row, heads);
}

/* Rows of Q, O, or LSE, of both halves or the second, between the whole tensor on device 0 and a device's shard. */
enum Way { TO_SHARD, TO_WHOLE };
static inline void move_rows(const Device &d, Way way, Layout layout, void *whole, void *shard, size_t row_bytes,
                             int half = 0) {
    const size_t whole_pitch = d.p.seqlen_q * row_bytes, matrices = (size_t)d.p.batch * d.p.heads;
    device_use(way == TO_SHARD ? d.number : 0);
    for (; half < HALVES; half++) {
        const Span span = queries_of(&d.p, chunk_of(&d.p, d.number, half));
        const size_t before = layout == APART ? d.rows_before(half) : half * queries_of_rows(&d.p, d.number, 0);
        const size_t bytes = span.count * row_bytes,
                     pitch = layout == APART ? bytes : queries_of_rows(&d.p, d.number, BOTH) * row_bytes;
        char *in_whole = (char *)whole + span.first * row_bytes, *in_shard = (char *)shard + before * row_bytes;
        if (way == TO_SHARD)
            device_pull(in_shard, pitch, 0, in_whole, whole_pitch, bytes, matrices);
        else
            device_pull(in_whole, whole_pitch, d.number, in_shard, pitch, bytes, matrices);
    }
}

/* K and V, between the whole sequence and the shard of `owner`, as far as the queries of chunk `last` see them. */
static inline void move_keys(const Device &owner, Way way, const int *key_lengths, const Keys &whole, const Keys &shard,
                             int last = 2 * MAX_DEVICES) {
    const Problem &p = owner.p;
    for (int b = 0; b < p.batch; b++)
        for (int piece = 0, at = 0; piece < PIECES; piece++) {
            const Span span = keys_of(&p, key_length(&p, key_lengths, b), owner.number, piece);
            const bool is_seen = piece == 0 || chunk_of(&p, owner.number, piece - 1) <= last;
            if (is_seen && way == TO_SHARD)
                pull_keys(p, b, shard, at, whole, span.first, span.count);
            else if (is_seen)
                pull_keys(p, b, whole, span.first, shard, at, span.count);
            at += span.count;
        }
}

/* A round of a device, which has two slots for shards of others: one that it computes with, and one to which the next
 * is pulled meanwhile. Returns the keys of this round, once they have arrived. */
static inline Keys begin_round(const Device &d, int round) {
    if (round > 0)
        device_wait(COMPUTE, d.number, ARRIVED + round % 2);
    device_record(COMPUTE, BEGIN + round);
    return round > 0 ? d.keys(OTHER_KEYS, round % 2, shard_keys(&d.p)) : d.shard();
}

/* Pulls the shard of a later round, as far as the device's queries see it. */
static inline void pull_shard(const Device &d, const int *key_lengths, int round, const Device &owner) {
    const Problem &p = d.p;
    const Keys slot = d.keys(OTHER_KEYS, round % 2, shard_keys(&p)), from = owner.shard();
    const auto seen = [&](int b) {
        return shard_keys_seen(&p, key_length(&p, key_lengths, b), owner.number, chunk_of(&p, d.number, 1));
    };
    if (round > 2) /* the shard of two rounds before is in the same slot, and must have been read */
        device_wait(COPY, d.number, END + round - 2);
    if (!key_lengths) { /* as many of all batch entries: K and V, which lie one behind the other, are one copy */
        const size_t pitch = slot.stored * d.row_bytes();
        device_pull(slot.k, pitch, owner.number, from.k, pitch, seen(0) * d.row_bytes(),
                    (size_t)2 * p.batch * p.kv_heads);
    }
    for (int b = 0; key_lengths && b < p.batch; b++)
        pull_keys(p, b, slot, 0, from, 0, seen(b));
    device_record(COPY, ARRIVED + round % 2);
}

/* All rounds of all devices: compute(device, round) puts into a device's queues what it computes, pull(device, round)
 * what it pulls besides keys. With two slots, the shards of rounds 1 and 2 are pulled at once, that of round 3 when
 * round 1 has ended, and so on. So each turn of the loop pulls for two rounds later, and the first, -1, only pulls. */
template <typename Compute, typename Pull>
void run_rounds(const Problem *p, const int *key_lengths, const Buffer *workspace, int buffers, Compute compute,
                Pull pull) {
    const int devices = devices_of(p);
    for (int round = -1; round < devices; round++) {
        for (int r = 0; r < devices && round >= 0; r++)
            if (device_use(r))
                compute(device_at(*p, workspace, r, buffers), round);
        device_pull_together(1);
        for (int r = 0; r < devices; r++) {
            const Device d = device_at(*p, workspace, r, buffers);
            device_use(r);
            if (round + 2 < devices)
                pull_shard(d, key_lengths, round + 2,
                           device_at(*p, workspace, shard_in_round(p, r, round + 2), buffers));
            pull(d, round);
        }
        device_pull_together(0);
    }
}

/* Attention of a part (part_of) that is not empty, over keys that are on the same device. */
static inline void attend(const Device &device, const Problem &part, int rows, int from, const void *queries,
                          const Keys &keys, void *o, float *lse) {
    Tensors t = {};
    t.q = queries, t.k = keys.k, t.v = keys.v, t.o = o, t.lse = lse;
    t.key_lengths = device.key_lengths(from, rows);
    context_alone(&part, &t, &device.buffers[NEXT_TILE]);
}

#endif
