/* trace_watch.c - the steps of a block, and the model's clock; and, if somebody watches, what happened in each step, for the
 * page of `make watch-<stage>` (watch.html, notes/trace.md).
 *
 * Time. On the CPU device threads run one after another, so their order says nothing. What a kernel does say is what comes
 * after what, and that is all a *step* is: each warp counts its steps, and goes on to the next one at __syncthreads, where
 * all warps go on with the highest count, at __syncwarp, and where it acquires a barrier, with one more than the highest
 * count of those who arrived there (Lamport's logical clock). What a block's warps do in their step t is step t of the block.
 *
 * Clock. A step takes as many clocks as its busiest unit needs at its peak rate, and those for which the block waited for
 * others. The steps of a block follow each other; a block begins when its multiprocessor is free, and a launch when the one
 * before is over.
 *
 * Places. Each word of shared memory has its *origin*: the rows of the tensor it was copied from, which is what the thread
 * read last of device memory, if it has read nothing of shared memory since; else it was computed. A warp that reads words
 * of shared memory that came from Q and K, or Q and K themselves, multiplies these rows and those: a *product*, a rectangle
 * of S. Rows of Q that were read in an earlier step stay in registers and count until others are read.
 */
#include "trace_internal.h"

#include "../host/errors.h"
#include "../host/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 4, CHUNK = 16, MAX_STEPS = 8192 /* of a launch, on a page */, MAX_RUNS = 12 };

/* ---- where a tensor's bytes lie on the map of S ---- */

/* OTHER: its rows are queries' or keys', but no product reads them. A tensor that is not in the table has bytes and no place. */
typedef enum { NOWHERE, QUERIES, KEYS, VALUES, SCORES, OTHER } Side;
enum { OF_KEYS = 1, TRANSPOSED = 2 /* [matrix][head_dim][keys] */ };
/* clang-format off */
static const struct { const char *name; Side side; int how; } PLACES[] = {
    {"Q", QUERIES, 0}, {"Q8", QUERIES, 0}, {"dO", QUERIES, 0}, {"K", KEYS, OF_KEYS}, {"K8", KEYS, OF_KEYS}, {"K cache", KEYS, OF_KEYS},
    {"V", VALUES, OF_KEYS}, {"VT8", VALUES, OF_KEYS | TRANSPOSED}, {"V cache", VALUES, OF_KEYS}, {"dK", OTHER, OF_KEYS}, {"dV", OTHER, OF_KEYS},
    {"S", SCORES, 0}, {"P", SCORES, 0}, {"O", OTHER, 0}, {"LSE", OTHER, 0}, {"O accumulator", OTHER, 0}, {"l", OTHER, 0}, {"m", OTHER, 0},
    {"dQ", OTHER, 0},
};
/* clang-format on */
static struct {
    Side side;
    size_t rows, row_bytes; /* transposed: keys of a matrix, bytes of one */
    int transposed;
} shapes[MAX_TENSORS];

static void place_tensors(const Problem *p) {
    memset(shapes, 0, sizeof shapes);
    for (int i = 0; i < trace_tensor_count; i++)
        for (size_t k = 0; k < sizeof PLACES / sizeof *PLACES; k++) {
            int of_keys = PLACES[k].how & OF_KEYS, transposed = PLACES[k].how & TRANSPOSED;
            size_t matrices = (size_t)p->batch * (of_keys ? p->kv_heads : p->heads),
                   seqlen = of_keys ? p->seqlen_k : p->seqlen_q;
            if (strcmp(trace_tensors[i].memory.purpose, PLACES[k].name) != 0)
                continue;
            shapes[i].side = PLACES[k].side;
            shapes[i].transposed = transposed;
            shapes[i].rows = transposed ? seqlen : matrices * seqlen;
            shapes[i].row_bytes = trace_tensors[i].memory.bytes / (transposed ? matrices : shapes[i].rows);
        }
}

static uint32_t least(size_t a, size_t b) { return (uint32_t)(a < b ? a : b); }
static uint32_t most(size_t a, size_t b) { return (uint32_t)(a > b ? a : b); }

static void widen(Span *a, const Span *b) {
    a->lo = least(a->lo, b->lo), a->hi = most(a->hi, b->hi);
    a->left = least(a->left, b->left), a->right = most(a->right, b->right);
}
static Span no_rows(int tensor) { return (Span){tensor, UINT32_MAX, 0, UINT32_MAX, 0}; }

static Span span_of(int tensor, size_t offset, size_t bytes) {
    size_t rows = shapes[tensor].rows, row_bytes = shapes[tensor].row_bytes;
    if (shapes[tensor].side == NOWHERE)
        return no_rows(tensor);
    size_t row = offset / row_bytes, byte = offset % row_bytes;
    if (shapes[tensor].transposed) {
        size_t key = byte % (row_bytes / page_problem->head_dim);
        return (Span){tensor, (uint32_t)(row * rows) + least(key, rows - 1),
                      (uint32_t)(row * rows) + least(key + bytes, rows) - 1, 0, 0};
    }
    Span span = {tensor, (uint32_t)row, (uint32_t)((offset + bytes - 1) / row_bytes), 0, 0};
    if (shapes[tensor].side == SCORES) {
        size_t element = row_bytes / page_problem->seqlen_k;
        span.left = (uint32_t)(byte / element), span.right = least((byte + bytes - 1) / element, page_problem->seqlen_k - 1);
    }
    return span;
}

/* ---- what is recorded ---- */

/* One more element, zeroed. Capacities are powers of two. */
#define APPEND(array, count) ((array) = grown((array), (count), sizeof *(array)), &(array)[(count)++])
static void *grown(void *array, int count, size_t size) {
    if ((count & (count - 1)) == 0)
        array = host_resize(array, count ? 2 * (size_t)count : 1, size);
    memset((char *)array + (size_t)count * size, 0, size);
    return array;
}

/* What a warp read last of Q or P, of K, and of V, and in which step. */
typedef struct {
    Span span;
    uint32_t time;
} Operand;
enum { OPERAND_Q, OPERAND_K, OPERAND_V, OPERANDS };

typedef struct {
    uint32_t time;
    Operand operands[OPERANDS];
    uint64_t flops; /* of this step */
    const void *async_place;
} WarpWatch;

/* Where a thread looked last for what another block does; how much had been changed by then. */
typedef struct {
    const void *address;
    uint32_t time;
    uint64_t changes;
} Look;

typedef struct {
    Span span; /* of device memory, read last; tensor 0: it was stored, or something else came between */
    size_t bytes;
    int pending;
} Load;

/* Of a block that is at work. The rest is only there if somebody watches. */
struct Watch {
    double clock; /* when the first step began that is not closed */
    Step *steps;
    int step_count, closed;
    WarpWatch warps[MAX_WARPS];
    Look looks[SIMT_MAX_BLOCK];
    Load loads[SIMT_MAX_BLOCK];
    Span *origin;  /* of each word of shared memory */
    Span *content; /* of each chunk, as of the last closed step */
};

static Launch launch; /* the one at hand */

/* ---- the clock ---- */

static Step *step_at(Watch *w, uint32_t time) {
    while ((uint32_t)w->step_count <= time)
        *APPEND(w->steps, w->step_count) = (Step){
            .block = simt_self->recorder->block, .multiprocessor = simt_self->multiprocessor, .time = (uint32_t)w->step_count - 1};
    return &w->steps[time];
}

/* What the busiest unit of a multiprocessor needs, in whole clocks, and which that is. */
static double clocks_of(const Step *s, int *busiest) {
    const double needs[] = {s->bytes / launch.bytes_per_clock, s->wavefronts, s->tensor_clocks, s->exponentials / 16.0,
                            (double)s->core_flops / trace_chip->fp32};
    *busiest = 0;
    for (int unit = 1; unit < (int)(sizeof needs / sizeof *needs); unit++)
        *busiest = needs[unit] > needs[*busiest] ? unit : *busiest;
    return needs[*busiest] < 1 ? 1 : ceil(needs[*busiest]);
}

static int is_empty(const Step *s) {
    return !(s->bytes || s->product_count || s->flops || s->wavefronts || s->exponentials || s->barriers || s->core_flops || s->waited);
}

uint32_t watch_step(Recorder *r) { return r->watch->warps[simt_self->current->number / SIMT_WARP].time; }

/* As far as is known now: other warps may still be in earlier steps, and have more to do there. */
double watch_clock(Recorder *r) {
    const Watch *w = r->watch;
    double clock = w->clock;
    int busiest;
    for (const Step *s = w->steps + w->closed, *end = w->steps + w->step_count; s < end && s->time <= watch_step(r); s++)
        clock += s->waited + (is_empty(s) || s->time == watch_step(r) ? 0 : clocks_of(s, &busiest));
    return clock;
}

/* How often anything was changed that a block may wait for. Who looks again at what it looked at since, in the same step, waits. */
static uint64_t changes;

void watch_look(Recorder *r, const void *address) {
    Look *look = &r->watch->looks[simt_self->current->number];
    uint32_t time = watch_step(r);
    if (look->address == address && look->time == time && look->changes == changes) {
        double clock = watch_clock(r);
        simt_yield(clock, 1);
        step_at(r->watch, time)->waited += simt_self->clock - clock;
    }
    *look = (Look){address, time, changes};
}

void watch_changed(void) {
    changes++;
    simt_changed();
}

/* ---- steps ---- */

static void add_operand(WarpWatch *warp, const Span *span) {
    Side side = shapes[span->tensor].side;
    Operand *operand = &warp->operands[side == KEYS ? OPERAND_K : side == VALUES ? OPERAND_V : OPERAND_Q];
    if (side == NOWHERE || side == OTHER)
        return;
    if (operand->span.tensor && operand->time == warp->time)
        widen(&operand->span, span);
    else
        *operand = (Operand){*span, warp->time};
}

/* What a thread read of device memory, and did not copy to shared memory, is an operand. */
static void settle(Watch *w, int thread) {
    Load *load = &w->loads[thread];
    if (load->pending)
        add_operand(&w->warps[thread / SIMT_WARP], &load->span);
    load->pending = 0;
}

/* The warp goes on to step `time`. Its products are those of the keys it read in this step; if there were none, but new
 * queries and something was multiplied, those of the keys that it keeps in registers. */
static void go_on(Watch *w, int number, uint32_t time) {
    WarpWatch *warp = &w->warps[number];
    for (int lane = 0; page_problem && lane < SIMT_WARP; lane++) {
        settle(w, number * SIMT_WARP + lane);
        w->loads[number * SIMT_WARP + lane].span = no_rows(0);
    }
    Step *step = step_at(w, warp->time);
    const Operand *q = &warp->operands[OPERAND_Q];
    for (int kept = 0, found = 0; kept < 2 && !found && q->span.tensor; kept++)
        for (const Operand *keys = q + OPERAND_K; keys <= q + OPERAND_V; keys++)
            if (keys->span.tensor && (kept ? q->time == warp->time && warp->flops : keys->time == warp->time)) {
                *APPEND(step->products, step->product_count) = (Product){number, q->span, keys->span};
                found = 1;
            }
    warp->flops = 0;
    warp->time = time;
}

/* Shared memory as the step leaves it: neighbouring chunks with rows that follow each other are a run. Where that makes many,
 * as in a transposed tile, there is one for each tensor. */
static void describe_shared(const Watch *w, Step *step) {
    for (int by_tensor = 0; by_tensor == 0 || (by_tensor == 1 && step->run_count > MAX_RUNS); by_tensor++) {
        step->run_count = 0;
        for (size_t i = 0; i < simt_job->shared_bytes / CHUNK; i++) {
            const Span *span = &w->content[i];
            int k = step->run_count - 1;
            while (k >= 0 && step->runs[k].span.tensor != span->tensor && by_tensor)
                k--;
            Stretch *run = k >= 0 ? &step->runs[k] : NULL;
            if (!run || run->span.tensor != span->tensor ||
                !(by_tensor || span->lo > span->hi || (span->lo >= run->span.lo && span->lo <= run->span.hi + 1))) {
                run = APPEND(step->runs, step->run_count);
                run->span = *span;
            }
            widen(&run->span, span);
            run->bytes += CHUNK;
        }
    }
}

/* No warp will come back to the steps before `end`. */
static void close_steps(Watch *w, uint32_t end) {
    for (; (uint32_t)w->closed < end && w->closed < w->step_count; w->closed++) {
        Step *step = &w->steps[w->closed];
        for (int i = 0; i < step->filling_count; i++) { /* four rows of one float each share a chunk */
            Span *held = &w->content[step->fillings[i].chunk], *span = &step->fillings[i].span;
            if (held->tensor == span->tensor && span->lo == held->hi + 1)
                widen(held, span);
            else
                *held = *span;
        }
        if (step->filling_count)
            describe_shared(w, step);
        free(step->fillings);
        step->fillings = NULL;
        step->start = w->clock;
        if (!is_empty(step))
            w->clock += step->clocks = clocks_of(step, &step->busiest) + step->waited;
    }
}

void watch_block_ends(Recorder *r) {
    Watch *w = r->watch;
    for (int warp = 0; warp * SIMT_WARP < simt_self->threads; warp++)
        go_on(w, warp, w->warps[warp].time);
    close_steps(w, UINT32_MAX);
    simt_self->clock = w->clock;
    for (int i = 0; page_problem && i < w->step_count; i++)
        if (!is_empty(&w->steps[i]))
            *APPEND(launch.steps, launch.count) = w->steps[i];
    free(w->steps);
    free(w->origin);
    free(w->content);
}

/* ---- what trace.c and trace_warp.c tell ---- */

void watch_block_begins(Recorder *r) {
    Watch *w = r->watch = r->watch ? r->watch : host_alloc(1, sizeof *w);
    memset(w, 0, sizeof *w);
    w->clock = simt_self->clock;
    step_at(w, 0);
    if (!page_problem)
        return;
    w->origin = host_alloc(simt_job->shared_bytes / WORD + 1, sizeof *w->origin);
    w->content = host_alloc(simt_job->shared_bytes / CHUNK + 1, sizeof *w->content);
    for (size_t i = 0; i < simt_job->shared_bytes / CHUNK; i++)
        w->content[i] = no_rows(-1);
}

static void move(Step *step, const Span *span, int direction, size_t bytes) {
    Move *m = step->moves, *end = m + step->move_count;
    while (m < end && (m->span.tensor != span->tensor || m->direction != direction))
        m++;
    if (m == end) {
        m = APPEND(step->moves, step->move_count);
        m->span = *span, m->direction = direction;
    }
    m->bytes += bytes;
    widen(&m->span, span);
}

void watch_access(Recorder *r, int tensor, SiteKind kind, size_t offset, size_t bytes) {
    Watch *w = r->watch;
    int thread = simt_self->current->number;
    WarpWatch *warp = &w->warps[thread / SIMT_WARP];
    Load *load = &w->loads[thread];
    if (tensor != SHARED_TENSOR)
        step_at(w, warp->time)->bytes += (1 + (kind == SITE_ATOMIC)) * bytes;
    if (!page_problem)
        return;
    if (tensor != SHARED_TENSOR) {
        Span span = span_of(tensor, offset, bytes);
        if (kind != SITE_WRITE)
            move(step_at(w, warp->time), &span, TRACE_READ, bytes);
        if (kind != SITE_READ)
            move(step_at(w, warp->time), &span, TRACE_WRITE, bytes);
        settle(w, thread);
        *load = kind == SITE_READ ? (Load){span, bytes, 1} : (Load){no_rows(0), 0, 0};
        return;
    }
    const Span *last = NULL;
    if (kind == SITE_READ)
        settle(w, thread);
    else
        load->pending = 0;
    for (size_t i = offset / WORD; i <= (offset + bytes - 1) / WORD && i < simt_job->shared_bytes / WORD; i++) {
        Span *origin = &w->origin[i];
        if (kind != SITE_READ)
            *origin = load->span;
        else if (origin->tensor && (!last || memcmp(last, origin, sizeof *last) != 0))
            add_operand(warp, last = origin);
    }
    Step *step = step_at(w, warp->time);
    for (size_t i = offset / CHUNK; kind != SITE_READ && i <= (offset + bytes - 1) / CHUNK; i++) {
        Filling *latest = step->filling_count ? &step->fillings[step->filling_count - 1] : NULL;
        if (i < simt_job->shared_bytes / CHUNK &&
            !(latest && latest->chunk == i && latest->span.tensor == load->span.tensor))
            *APPEND(step->fillings, step->filling_count) = (Filling){(uint32_t)i, load->span};
    }
    if (kind == SITE_READ || bytes >= load->bytes)
        load->span = no_rows(0);
}

void watch_wavefronts(Recorder *r, int warp, uint64_t count) {
    step_at(r->watch, r->watch->warps[warp].time)->wavefronts += count;
}

void watch_async(Recorder *r, const void *place) {
    r->watch->warps[simt_self->current->number / SIMT_WARP].async_place = place;
}

void watch_work(Recorder *r, int number, const char *what, const void *place, unsigned flops) {
    WarpWatch *warp = &r->watch->warps[number];
    Step *step = step_at(r->watch, warp->time);
    step->exponentials += strcmp(what, WATCH_EXPONENTIAL) == 0;
    step->flops += flops;
    warp->flops += flops;
    if (flops) /* 8-bit ones take 32 elements of k */
        step->tensor_clocks += flops * trace_chip->ghz * trace_chip->multiprocessors / 1000 / trace_chip->tflops[strstr(what, "k32") != NULL];
    if (page_problem)
        page_work(launch.kernel, place ? place : warp->async_place, what, 1);
}

void watch_flops(Recorder *r, unsigned flops) { step_at(r->watch, watch_step(r))->core_flops += flops; }

void watch_barrier(Recorder *r, const char *what, const void *place) {
    Watch *w = r->watch;
    uint32_t latest = 0;
    for (int warp = 0; warp * SIMT_WARP < simt_self->threads; warp++)
        latest = w->warps[warp].time > latest ? w->warps[warp].time : latest;
    watch_work(r, 0, what, place, 0);
    step_at(w, latest)->barriers++;
    for (int warp = 0; warp * SIMT_WARP < simt_self->threads; warp++)
        go_on(w, warp, latest + 1);
    close_steps(w, latest + 1);
}

void watch_warp(Recorder *r, int warp) { go_on(r->watch, warp, r->watch->warps[warp].time + 1); }

void watch_acquire(Recorder *r, uint32_t step) {
    if (step > watch_step(r))
        go_on(r->watch, simt_self->current->number / SIMT_WARP, step);
}

/* ---- a launch ---- */

void watch_launch_begins(void) {
    const double blocks = (double)simt_job->grid.x * simt_job->grid.y * simt_job->grid.z, most = trace_chip->multiprocessors;
    launch = (Launch){.kernel = result_kernel(), .blocks = (uint64_t)blocks};
    /* Blocks that are at work share device memory; but a multiprocessor's way to L2 takes 64 bytes a clock. */
    launch.bytes_per_clock = fmin(64, trace_chip->gbps / trace_chip->ghz / fmin(blocks, most));
    if (page_problem)
        place_tensors(page_problem);
}

static int by_block_and_time(const void *a, const void *b) {
    const Step *s = a, *t = b;
    return s->block != t->block ? (s->block > t->block) - (s->block < t->block) : (s->time > t->time) - (s->time < t->time);
}

void watch_launch_ends(void) {
    if (!page_problem)
        return;
    qsort(launch.steps, (size_t)launch.count, sizeof *launch.steps, by_block_and_time);
    if (launch.count > MAX_STEPS)
        cannot_run("--watch: %s takes %d steps, and a page shows %d: choose a smaller problem", trace_result.kernels[launch.kernel].name,
                   launch.count, MAX_STEPS);
    page_launch(&launch);
    for (Step *step = launch.steps; step < launch.steps + launch.count; step++) {
        free(step->moves);
        free(step->products);
        free(step->runs);
    }
    free(launch.steps);
}
