/* trace_result.c - adds up what was recorded: sites to rows, bytes that raced to pairs of lines. */
#include "trace_internal.h"

#include "../host/memory.h"
#include "../host/errors.h"

#include <stdlib.h>
#include <string.h>

Trace trace_result;
LaunchCount trace_launch;
const Chip *trace_chip;

/* By kernel and site: what it costs, and the row it belongs to. */
static SiteCount site_counts[TRACE_KERNELS][MAX_SITES];
static int site_rows[TRACE_KERNELS][MAX_SITES];

/* Races by pair of sites; several pairs may turn out to be one pair of lines. */
typedef struct {
    TraceKernel *kernel;
    Toucher side[2];
    uint64_t offset, count;
    int unpublished;
    char tensor[64];
} RacePair;
enum { MAX_PAIRS = 512 };
static RacePair pairs[MAX_PAIRS];
static int pair_count;

void result_clear(void) {
    memset(&trace_result, 0, sizeof trace_result);
    memset(site_counts, 0, sizeof site_counts);
    pair_count = 0;
}

/* The record of the kernel at hand; made if it is new. All instances of a template are one. */
static TraceKernel *kernel_at_hand(void) {
    size_t length = strcspn(simt_job->kernel, "<");
    TraceKernel *k = trace_result.kernels, *end = k + trace_result.kernel_count;
    while (k < end && (strlen(k->name) != length || strncmp(k->name, simt_job->kernel, length) != 0))
        k++;
    if (k == end) {
        if (trace_result.kernel_count == TRACE_KERNELS)
            cannot_run("trace: more than %d kernels", TRACE_KERNELS);
        trace_result.kernel_count++;
        snprintf(k->name, sizeof k->name, "%.*s", (int)length, simt_job->kernel);
    }
    return k;
}

static TraceRow *find_row(const TraceKernel *kernel, const char *tensor) {
    TraceRow *row = trace_result.rows, *end = row + trace_result.row_count;
    while (row < end && (row->kernel != kernel->name || strcmp(row->tensor, tensor) != 0))
        row++;
    if (row == end) {
        if (trace_result.row_count == TRACE_ROWS)
            cannot_run("trace: more than %d tensors and kernels", TRACE_ROWS);
        trace_result.row_count++;
        row->kernel = kernel->name;
        snprintf(row->tensor, sizeof row->tensor, "%s", tensor);
    }
    return row;
}

/* ---- after each launch ---- */

static void add_site(TraceKernel *kernel, int site, const SiteCount *count) {
    TraceRow *row = find_row(kernel, trace_tensors[trace_sites[site].tensor].memory.purpose);
    SiteCount *sum = &site_counts[kernel - trace_result.kernels][site];
    site_rows[kernel - trace_result.kernels][site] = (int)(row - trace_result.rows);
    sum->requests += count->requests;
    sum->bytes += count->bytes;
    sum->cost += count->cost;
    sum->ideal += count->ideal;
    for (int direction = 0; direction < TRACE_DIRECTIONS; direction++) {
        if (trace_sites[site].kind == (direction == TRACE_READ ? SITE_WRITE : SITE_READ))
            continue; /* an atomic goes both ways */
        row->bytes[direction] += count->bytes;
        row->requests[direction] += count->requests;
        row->cost[direction] += count->cost;
        row->ideal[direction] += count->ideal;
    }
    row->approximate |= count->approximate;
}

void result_count(TraceCollective *collectives, const char *what, uint64_t count) {
    TraceCollective *c = collectives, *end = c + TRACE_COLLECTIVES;
    while (c < end && c->what && c->what != what && strcmp(c->what, what) != 0)
        c++;
    if (c == end)
        cannot_run("trace: kernel %s has more than %d kinds of collectives", simt_job->kernel, TRACE_COLLECTIVES);
    c->what = what;
    c->count += count;
}

unsigned result_flops(const char *what) {
    unsigned m, n, k; /* "mma_m16n8k16": the name is the shape of the product */
    if (sscanf(what, "mma_m%un%uk%u", &m, &n, &k) == 3 || sscanf(what, "wgmma_m%un%uk%u", &m, &n, &k) == 3)
        return 2 * m * n * k;
    return 0;
}

static void add_collective(TraceKernel *kernel, const TraceCollective *from) {
    result_count(kernel->collectives, from->what, from->count);
    kernel->mma_flops += result_flops(from->what) * from->count;
}

void result_add_launch(void) {
    TraceKernel *kernel = kernel_at_hand();
    kernel->launches++;
    kernel->blocks += (uint64_t)simt_job->grid.x * simt_job->grid.y * simt_job->grid.z;
    kernel->threads = simt_job->block.x * simt_job->block.y * simt_job->block.z;
    kernel->shared_bytes = simt_job->shared_bytes;
    for (int tensor = trace_tensor_count - 1; tensor >= 0; tensor--) /* in the order they were allocated */
        for (int site = 0; site < trace_site_count; site++)
            if (trace_sites[site].tensor == tensor && trace_launch.sites[site].requests)
                add_site(kernel, site, &trace_launch.sites[site]);
    for (const TraceCollective *c = trace_launch.collectives; c->what; c++)
        add_collective(kernel, c);
    kernel->barriers += trace_launch.barriers;
    kernel->exponentials += trace_launch.exponentials;
    kernel->exponentials_beside += trace_launch.exponentials_beside;
    kernel->cuda_flops += trace_launch.flops;
    for (TraceRow *row = trace_result.rows; row < trace_result.rows + trace_result.row_count; row++)
        for (int i = SHARED_TENSOR + 1; row->kernel == kernel->name && i < trace_tensor_count; i++)
            for (int k = 0; k < TRACE_DIRECTIONS && strcmp(row->tensor, trace_tensors[i].memory.purpose) == 0; k++)
                row->unique[k] += trace_tensors[i].unique[k];
}

int result_kernel(void) { return (int)(kernel_at_hand() - trace_result.kernels); }

const SiteCount *result_sites(int kernel) { return site_counts[kernel]; }

/* Called for each byte. */
void result_add_race(Toucher earlier, Toucher later, uint64_t offset, int unpublished) {
    TraceKernel *kernel = kernel_at_hand();
    RacePair *pair = pairs, *end = pairs + pair_count;
    while (pair < end && (pair->kernel != kernel || pair->side[0].site != earlier.site || pair->side[1].site != later.site ||
                          pair->unpublished != unpublished))
        pair++;
    if (pair == end && pair_count < MAX_PAIRS) {
        *pair = (RacePair){kernel, {earlier, later}, offset, 0, unpublished, ""};
        snprintf(pair->tensor, sizeof pair->tensor, "%s", trace_tensors[trace_sites[later.site].tensor].memory.purpose);
        pair_count++;
    }
    if (pair < pairs + MAX_PAIRS)
        pair->count++;
}

/* ---- at the end ---- */

static void finish_race(const RacePair *pair, const SourceLine *lines) {
    TraceRace *race = trace_result.races, *end = race + trace_result.race_count;
    const char *earlier = lines[pair->side[0].site], *later = lines[pair->side[1].site];
    while (race < end && (race->kernel != pair->kernel->name || strcmp(race->tensor, pair->tensor) != 0 ||
                          strcmp(race->line[0], earlier) != 0 || strcmp(race->line[1], later) != 0 ||
                          race->unpublished != pair->unpublished))
        race++;
    if (race == end) {
        if (trace_result.race_count == TRACE_RACES)
            return; /* more than anybody will read */
        trace_result.race_count++;
        *race = (TraceRace){.kernel = pair->kernel->name, .offset = pair->offset, .unpublished = pair->unpublished};
        snprintf(race->tensor, sizeof race->tensor, "%s", pair->tensor);
        for (int i = 0; i < 2; i++) {
            snprintf(race->line[i], TRACE_LINE, "%s", lines[pair->side[i].site]);
            race->writes[i] = trace_sites[pair->side[i].site].kind != SITE_READ;
            race->block[i] = pair->side[i].block;
            race->thread[i] = pair->side[i].thread;
        }
    }
    race->count += pair->count;
}

void result_finish(void) {
    SourceLine *lines = host_alloc((size_t)trace_site_count, sizeof *lines);
    source_lines(trace_sites, trace_site_count, lines);

    for (int kernel = 0; kernel < trace_result.kernel_count; kernel++)
        for (int site = 0; site < trace_site_count; site++) {
            const SiteCount *c = &site_counts[kernel][site];
            TraceRow *row = &trace_result.rows[site_rows[kernel][site]];
            if (!c->requests || c->cost - c->ideal <= row->worst_cost - row->worst_ideal)
                continue;
            snprintf(row->worst_line, TRACE_LINE, "%s", lines[site]);
            row->worst_requests = c->requests, row->worst_cost = c->cost, row->worst_ideal = c->ideal;
        }
    for (int i = 0; i < pair_count; i++)
        finish_race(&pairs[i], lines);
    free(lines);
}

const TraceRow *trace_find(const Trace *trace, const char *kernel, const char *tensor) {
    static const TraceRow none;
    for (const TraceRow *row = trace->rows; row < trace->rows + trace->row_count; row++)
        if (strcmp(row->kernel, kernel) == 0 && strcmp(row->tensor, tensor) == 0)
            return row;
    return &none;
}
