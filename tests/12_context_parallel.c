/* 12_context_parallel.c - who holds which queries and keys, counted one by one; the bytes that cross a link,
 * by closed forms; and the queues of several devices, in every order that the CPU device knows.
 */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include "../12_context_parallel/shards.h"
#include "../common/host/memory.h"
#include "../common/traffic.h"
#include "tap.h"

#include <stdlib.h>

static Problem problem(int seqlen_q, int seqlen_k, int causal, int devices, int chunks) {
    Problem p = {
        .batch = 1, .heads = 2, .kv_heads = 1, .seqlen_q = seqlen_q, .seqlen_k = seqlen_k, .head_dim = 64, .causal = causal};
    p.settings[DEVICES] = devices, p.settings[CHUNKS] = chunks;
    return p;
}

/* Whether each query and each of `length` keys is somebody's, once, and a chunk sees of a shard what the mask says. */
static int is_right(const Problem *p, int length) {
    const int devices = devices_of(p);
    int *owners = host_alloc((size_t)p->seqlen_q + length, sizeof *owners), right = 1;
    for (int r = 0; r < devices; r++) {
        int *shard = host_alloc((size_t)shard_keys(p), sizeof *shard), count = 0;
        for (int half = 0; half < HALVES; half++) {
            Span span = queries_of(p, chunk_of(p, r, half));
            right &= span.count <= largest_chunk(p);
            for (int i = 0; i < span.count; i++)
                owners[span.first + i]++;
        }
        for (int piece = 0; piece < PIECES; piece++) {
            Span span = keys_of(p, length, r, piece);
            for (int i = 0; i < span.count; i++) {
                owners[p->seqlen_q + span.first + i]++;
                if (count < shard_keys(p))
                    shard[count] = span.first + i;
                count++;
            }
        }
        right &= count <= shard_keys(p);
        for (int chunk = 0; right && chunk < 2 * devices; chunk++) {
            Span span = queries_of(p, chunk);
            int last = visible_keys(p, length, span.first + span.count - 1), seen = shard_keys_seen(p, length, r, chunk);
            for (int i = 0; i < count && span.count; i++)
                right &= (i < seen) == (shard[i] < last);
            right &= !span.count || shard_keys_seen(p, length, WHOLE, chunk) == last;
        }
        free(shard);
    }
    for (int i = 0; i < p->seqlen_q + length; i++)
        right &= owners[i] == 1;
    free(owners);
    return right;
}

/* Whether each query of a device, in the problem that BOTH halves are, sees of a shard what it sees in a problem of its
 * half alone. */
static int is_one_right(const Problem *p, int length) {
    int right = 1;
    for (int i = 0; i < devices_of(p) * devices_of(p); i++) {
        const int r = i / devices_of(p), from = i % devices_of(p), first = queries_of_rows(p, r, 0);
        if (!are_one_problem(p, &length, r, from)) {
            right &= halves_alone(p) + (part_of(p, &length, r, 0, from).seqlen_q == 0) >= HALVES;
            continue;
        }
        const Problem both = part_of(p, &length, r, BOTH, from);
        int *seen = keys_of_part(p, &length, r, BOTH, from);
        for (int row = 0; row < queries_of_rows(p, r, BOTH); row++) {
            const int half = row >= first;
            const Problem alone = part_of(p, &length, r, half, from);
            int *alone_seen = keys_of_part(p, &length, r, half, from);
            right &= (alone.seqlen_q ? visible_keys(&alone, *alone_seen, row - half * first) : 0) ==
                     (both.seqlen_q ? visible_keys(&both, *seen, row) : 0);
            free(alone_seen);
        }
        free(seen);
    }
    return right;
}

static void test_shards(void) {
    static const int lengths[] = {1, 2, 7, 16, 33, 64};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    for (int devices = 1; devices <= MAX_DEVICES; devices++) {
        int right = 1;
        for (int i = 0; i < COUNT * COUNT * 4; i++) {
            Problem p = problem(lengths[i % COUNT], lengths[i / COUNT % COUNT], i / COUNT / COUNT % 2, devices,
                                i / COUNT / COUNT / 2);
            for (int length = 0; right && length <= p.seqlen_k; length++)
                if (!is_right(&p, length) || !is_one_right(&p, length))
                    right = 0, diag("%d queries, %d of %d keys, %s, %s", p.seqlen_q, length, p.seqlen_k,
                                    p.causal ? "causal" : "full", p.settings[CHUNKS] == ZIGZAG ? "zigzag" : "contiguous");
        }
        ok(right, "%d devices: each query and key has one owner, and chunks see of the shards what the mask leaves",
           devices);
    }
}

/* Sq = Sk = 2 G C: a device pulls one chunk from each device before it, and two from each after it; contiguous: two,
 * and none. */
static void test_links(void) {
    enum { C = 6, G = 4 };
    const double chunk = 2. * C * 64 * 2; /* K and V, 64 numbers of 2 bytes */
    for (int kind = 0; kind < 3; kind++) {
        Problem p = problem(2 * G * C, 2 * G * C, kind < 2, G, kind == 1 ? CONTIGUOUS : ZIGZAG);
        int right = 1;
        for (int from = 0; from < G; from++)
            for (int to = 0; to < G; to++) {
                static const int before[] = {1, 2, 2}, after[] = {2, 0, 2};
                right &= link_bytes(&p, NULL, from, to) == (from == to ? 0 : (from < to ? before : after)[kind] * chunk);
            }
        ok(right, "bytes of each link: %s", (const char *[]){"causal, zigzag", "causal, contiguous", "full"}[kind]);
    }
}

/* ---- queues ---- */

/* Each of three devices hands a number to the next, which adds it to its own by copying; `waits` says whether it waits
 * for it. */
static int chain(const char *order, int waits) {
    int *memory[3], result;
    setenv("CPU_DEVICE_ORDER", order, 1);
    for (int d = 0; d < 3; d++) {
        device_use(d);
        memory[d] = device_alloc(sizeof(int), "number");
        device_write(memory[d], &(int){d}, sizeof(int));
    }
    device_fork(3);
    for (int d = 1; d < 3; d++) {
        device_use(d);
        if (waits)
            device_wait(COPY, d - 1, 0);
        device_pull(memory[d], sizeof(int), d - 1, memory[d - 1], sizeof(int), sizeof(int), 1);
        device_record(COPY, 0);
    }
    device_join(3);
    device_read(&result, memory[2], sizeof(int));
    for (int d = 0; d < 3; d++)
        device_free(memory[d]);
    return result;
}

static void test_queues(void) {
    const int is_cpu = device_properties()->is_cpu;
    if (device_peers() < 3) {
        ok(1, "queues of three devices # SKIP there are fewer");
        return;
    }
    ok(chain("forward", 1) == 0 && chain("reverse", 1) == 0 && chain("shuffle", 1) == 0,
       "a copy waits for the one whose event it waits for");
    ok(device_link_bytes(0, 1) == sizeof(int) && device_link_bytes(1, 2) == sizeof(int) && device_link_bytes(0, 2) == 0,
       "the bytes of each link are counted");
    if (is_cpu)
        ok(chain("forward", 0) != chain("reverse", 0), "without the wait the order of the queues shows");
}

int main(void) {
    test_shards();
    test_links();
    test_queues();
    return tap_done();
}
