/* trace_watch.c - what happened in each step of trace_clock.c, for the page of `make watch-<stage>` (watch.html, notes/trace.md).
 *
 * Each word of shared memory has its *origin*: the rows of the tensor it was copied from, which is what the thread
 * read last of device memory, if it has read nothing of shared memory since; else it was computed. A warp that reads words
 * of shared memory that came from Q and K, or Q and K themselves, multiplies these rows and those: a *product*, a rectangle
 * of S. Rows of Q that were read in an earlier step stay in registers and count until others are read. Where Q or K is
 * copied from several parts of a tensor, a tile can hold rows of more than one part; each pair of parts is then a product.
 */
#include "trace_internal.h"

#include "../host/errors.h"
#include "../host/memory.h"

#include <stdlib.h>
#include <string.h>

enum { WORD = 4, CHUNK = 16, PIECES = 24 /* per tile */, MAX_STEPS = 8192 /* per launch, on a page */, MAX_RUNS = 12 };

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

/* Of what each of several devices has an allocation, none holds all rows. */
static int is_whole(int tensor) {
    int same = 0;
    for (int i = 0; i < trace_tensor_count; i++)
        same += strcmp(trace_tensors[i].memory.purpose, trace_tensors[tensor].memory.purpose) == 0;
    return same == 1;
}

void watch_launch_begins(void) {
    const Problem *p = page_problem;
    memset(shapes, 0, sizeof shapes);
    for (int i = 0; i < trace_tensor_count; i++)
        for (size_t k = 0; k < sizeof PLACES / sizeof *PLACES && is_whole(i); k++) {
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
static Span no_rows(int tensor) { return (Span){tensor, UINT32_MAX, 0, UINT32_MAX, 0, 0}; }
static int are_of_one_piece(const Span *a, const Span *b) { return a->tensor == b->tensor && a->shift == b->shift; }

static Span rows_of(int tensor, size_t offset, size_t bytes) {
    size_t rows = shapes[tensor].rows, row_bytes = shapes[tensor].row_bytes;
    if (shapes[tensor].side == NOWHERE)
        return no_rows(tensor);
    size_t row = offset / row_bytes, byte = offset % row_bytes;
    if (shapes[tensor].transposed) {
        size_t key = byte % (row_bytes / page_problem->head_dim);
        return (Span){tensor, (uint32_t)(row * rows) + least(key, rows - 1),
                      (uint32_t)(row * rows) + least(key + bytes, rows) - 1, 0, 0, 0};
    }
    Span span = {tensor, (uint32_t)row, (uint32_t)((offset + bytes - 1) / row_bytes), 0, 0, 0};
    if (shapes[tensor].side == SCORES) {
        size_t element = row_bytes / page_problem->seqlen_k;
        span.left = (uint32_t)(byte / element), span.right = least((byte + bytes - 1) / element, page_problem->seqlen_k - 1);
    }
    return span;
}

/* Of a copy, the rows that were copied. */
static Span span_of(int tensor, size_t offset, size_t bytes) {
    const char *byte = (const char *)trace_tensors[tensor].memory.pointer + offset, *original = copy_original(byte);
    const int copied = original ? find_tensor(original) : -1;
    if (copied < 0 || shapes[copied].side == NOWHERE)
        return rows_of(tensor, offset, bytes);
    Span span = rows_of(copied, (size_t)(original - (const char *)trace_tensors[copied].memory.pointer), bytes);
    span.shift = original - byte;
    return span;
}

/* ---- what is recorded of a block that is at work ---- */

/* What a warp read last of Q or P, of K, and of V, and in which step. */
typedef struct {
    Span pieces[PIECES];
    int count;
    uint32_t time;
} Operand;
enum { OPERAND_Q, OPERAND_K, OPERAND_V, OPERANDS };

typedef struct {
    uint32_t time; /* of the step that it is at */
    Operand operands[OPERANDS];
    uint64_t flops; /* of this step */
    const void *async_place;
} WarpWatch;

typedef struct {
    Span span; /* of device memory, read last; tensor 0: it was stored, or something else came between */
    size_t bytes;
    int pending;
} Load;

struct Watch {
    WarpWatch warps[MAX_WARPS];
    Load loads[SIMT_MAX_BLOCK];
    Span *origin;  /* of each word of shared memory */
    Span *content; /* of each chunk, as of the last closed step */
};

void watch_block_begins(Recorder *r) {
    Watch *w = r->watch = r->watch ? r->watch : host_alloc(1, sizeof *w);
    memset(w, 0, sizeof *w);
    w->origin = host_alloc(simt_job->shared_bytes / WORD + 1, sizeof *w->origin);
    w->content = host_alloc(simt_job->shared_bytes / CHUNK + 1, sizeof *w->content);
    for (size_t i = 0; i < simt_job->shared_bytes / CHUNK; i++)
        w->content[i] = no_rows(-1);
}

void watch_block_ends(Recorder *r) {
    free(r->watch->origin);
    free(r->watch->content);
}

/* ---- a step ---- */

static void add_operand(WarpWatch *warp, const Span *span) {
    Side side = shapes[span->tensor].side;
    Operand *operand = &warp->operands[side == KEYS ? OPERAND_K : side == VALUES ? OPERAND_V : OPERAND_Q];
    if (side == NOWHERE || side == OTHER)
        return;
    if (operand->time != warp->time)
        operand->count = 0, operand->time = warp->time;
    Span *piece = operand->pieces, *last = piece + operand->count - 1;
    while (piece <= last && piece->shift != span->shift && !(piece->lo <= span->lo && piece->hi >= span->hi))
        piece++;
    if (piece <= last)
        widen(piece, span);
    else if (operand->count < PIECES)
        operand->pieces[operand->count++] = *span;
}

/* What a thread read of device memory, and did not copy to shared memory, is an operand. */
static void settle(Watch *w, int thread) {
    Load *load = &w->loads[thread];
    if (load->pending)
        add_operand(&w->warps[thread / SIMT_WARP], &load->span);
    load->pending = 0;
}

/* A warp's products are those of the keys it read in this step; if there were none, but new queries and something was multiplied,
 * those of the keys that it keeps in registers. */
void watch_warp_ends_step(Recorder *r, int number, Step *step) {
    Watch *w = r->watch;
    WarpWatch *warp = &w->warps[number];
    warp->time = step->time;
    for (int lane = 0; lane < SIMT_WARP; lane++) {
        settle(w, number * SIMT_WARP + lane);
        w->loads[number * SIMT_WARP + lane].span = no_rows(0);
    }
    const Operand *q = &warp->operands[OPERAND_Q];
    for (int kept = 0, found = 0; kept < 2 && !found && q->count; kept++)
        for (const Operand *keys = q + OPERAND_K; keys <= q + OPERAND_V; keys++)
            for (int i = 0; i < q->count * keys->count; i++)
                if (kept ? q->time == step->time && warp->flops : keys->time == step->time) {
                    *APPEND(step->products, step->product_count) =
                        (Product){number, q->pieces[i / keys->count], keys->pieces[i % keys->count]};
                    found = 1;
                }
    warp->flops = 0;
}

/* Shared memory as the step leaves it: neighboring chunks with rows that follow each other are a run. Where that makes many,
 * as in a transposed tile, there is one for each tensor. */
static void describe_shared(const Watch *w, Step *step) {
    for (int by_tensor = 0; by_tensor == 0 || (by_tensor == 1 && step->run_count > MAX_RUNS); by_tensor++) {
        step->run_count = 0;
        for (size_t i = 0; i < simt_job->shared_bytes / CHUNK; i++) {
            const Span *span = &w->content[i];
            int k = step->run_count - 1;
            while (k >= 0 && !are_of_one_piece(&step->runs[k].span, span) && by_tensor)
                k--;
            Stretch *run = k >= 0 ? &step->runs[k] : NULL;
            if (!run || !are_of_one_piece(&run->span, span) ||
                !(by_tensor || span->lo > span->hi || (span->lo >= run->span.lo && span->lo <= run->span.hi + 1))) {
                run = APPEND(step->runs, step->run_count);
                run->span = *span;
            }
            widen(&run->span, span);
            run->bytes += CHUNK;
        }
    }
}

void watch_step_closes(Recorder *r, Step *step) {
    for (int i = 0; i < step->filling_count; i++) { /* four rows of one float each share a chunk */
        Span *held = &r->watch->content[step->fillings[i].chunk], *span = &step->fillings[i].span;
        if (are_of_one_piece(held, span) && span->lo == held->hi + 1)
            widen(held, span);
        else
            *held = *span;
    }
    if (step->filling_count)
        describe_shared(r->watch, step);
    free(step->fillings);
    step->fillings = NULL;
}

/* ---- what happens in it ---- */

static void move(Step *step, const Span *span, int direction, size_t bytes) {
    Move *m = step->moves, *end = m + step->move_count;
    while (m < end && (!are_of_one_piece(&m->span, span) || m->direction != direction))
        m++;
    if (m == end) {
        m = APPEND(step->moves, step->move_count);
        m->span = *span, m->direction = direction;
    }
    m->bytes += bytes;
    widen(&m->span, span);
}

void watch_access(Recorder *r, Step *step, int tensor, SiteKind kind, size_t offset, size_t bytes) {
    Watch *w = r->watch;
    int thread = simt_self->current->number;
    WarpWatch *warp = &w->warps[thread / SIMT_WARP];
    Load *load = &w->loads[thread];
    warp->time = step->time;
    if (tensor != SHARED_TENSOR) {
        Span span = span_of(tensor, offset, bytes);
        if (kind != SITE_WRITE)
            move(step, &span, TRACE_READ, bytes);
        if (kind != SITE_READ)
            move(step, &span, TRACE_WRITE, bytes);
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
    for (size_t i = offset / CHUNK; kind != SITE_READ && i <= (offset + bytes - 1) / CHUNK; i++) {
        Filling *latest = step->filling_count ? &step->fillings[step->filling_count - 1] : NULL;
        if (i < simt_job->shared_bytes / CHUNK &&
            !(latest && latest->chunk == i && latest->span.tensor == load->span.tensor))
            *APPEND(step->fillings, step->filling_count) = (Filling){(uint32_t)i, load->span};
    }
    if (kind == SITE_READ || bytes >= load->bytes)
        load->span = no_rows(0);
}

void watch_async(Recorder *r, int warp, const void *place) { r->watch->warps[warp].async_place = place; }

void watch_work(Recorder *r, int number, int kernel, const char *what, const void *place, unsigned flops) {
    WarpWatch *warp = &r->watch->warps[number];
    warp->flops += flops;
    page_work(kernel, place ? place : warp->async_place, what, 1);
}

/* ---- a launch ---- */

static int by_block_and_time(const void *a, const void *b) {
    const Step *s = a, *t = b;
    return s->block != t->block ? (s->block > t->block) - (s->block < t->block) : (s->time > t->time) - (s->time < t->time);
}

void watch_launch_ends(Launch *launch) {
    qsort(launch->steps, (size_t)launch->count, sizeof *launch->steps, by_block_and_time);
    if (launch->count > MAX_STEPS)
        cannot_run("--watch: %s takes %d steps, but a page shows only %d: choose a smaller problem", trace_result.kernels[launch->kernel].name,
                   launch->count, MAX_STEPS);
    page_launch(launch);
    for (Step *step = launch->steps; step < launch->steps + launch->count; step++) {
        free(step->moves);
        free(step->products);
        free(step->runs);
    }
    free(launch->steps);
}
