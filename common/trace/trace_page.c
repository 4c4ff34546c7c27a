/* trace_page.c - writes what the trace, trace_clock.c and trace_watch.c recorded as JSON, the data of watch.html. One object a program:
 *
 *     {"stage", "problem": {...}, "chip": {...}, "variants": [{"launches": [...], "name", "idea", "tensors", "sizes", "kernels": [...]}]}
 *
 * A kernel has "sites" [[line, tensor, kind, requests, bytes, cost, ideal]] and "work" [[line, what, count, flops each]]. A
 * launch has the number of its "device", and "steps", in the order of blocks:
 *
 *     [block, FLOPs of tensor cores, of CUDA cores, exponentials, wavefronts, barriers,
 *      [tensor, direction, bytes, first row, last row, first column, last column, ...],       moves of device memory
 *      [warp, tensor of the keys, first query, last query, first key, last key, ...],         products
 *      [tensor (0: computed, -1: nothing yet), bytes, first row, last row, ...],              shared memory; empty: as before
 *      multiprocessor, clock of its beginning, cycles, busiest unit]
 *
 * Rows are counted through all heads, tensors are numbers in "tensors"; no rows: the first is after the last. Rows of a copy are
 * said to be those of the tensor that it was copied from.
 */
#include "trace_internal.h"

#include "../block_mask.h"
#include "../host/memory.h"
#include "../host/errors.h"

#include <stdlib.h>
#include <string.h>

static FILE *page;
static const char *page_path;
static int variant_count, launch_count; /* written */
const Problem *page_problem;

/* What has been done by the variant at hand. */
typedef struct {
    int kernel;
    const void *place;
    const char *what;
    uint64_t count;
} Work;
static Work *works;
static int work_count;

#define COMMA(i) ((i) ? "," : "")
typedef unsigned long long Long;

/* ---- kernels ---- */

static void print_kernel(int number, const SourceLine *lines) {
    const TraceKernel *kernel = &trace_result.kernels[number];
    const SiteCount *sites = result_sites(number);
    int printed = 0;
    fprintf(page, "%s\n{\"name\":\"%s\",\"blocks\":%llu,\"threads\":%llu,\"shared\":%llu,\"sites\":[", COMMA(number),
            kernel->name, (Long)kernel->blocks, (Long)kernel->threads, (Long)kernel->shared_bytes);
    for (int i = 0; i < trace_site_count; i++) {
        if (!sites[i].requests)
            continue;
        fprintf(page, "%s[\"%s\",%d,%d,%llu,%llu,%llu,%llu]", COMMA(printed++), lines[i], trace_sites[i].tensor,
                trace_sites[i].kind, (Long)sites[i].requests, (Long)sites[i].bytes, (Long)sites[i].cost,
                (Long)sites[i].ideal);
    }
    fprintf(page, "],\"work\":[");
    printed = 0;
    for (int i = 0; i < work_count; i++)
        if (works[i].kernel == number)
            fprintf(page, "%s[\"%s\",\"%s\",%llu,%u]", COMMA(printed++), lines[trace_site_count + i], works[i].what,
                    (Long)works[i].count, result_flops(works[i].what));
    fprintf(page, "]}");
}

static void print_step(const Step *step) {
    fprintf(page, "[%u,%llu,%llu,%llu,%llu,%llu,[", step->block, (Long)step->flops, (Long)step->core_flops,
            (Long)step->exponentials, (Long)step->wavefronts, (Long)step->barriers);
    for (int i = 0; i < step->move_count; i++) {
        const Span *s = &step->moves[i].span;
        fprintf(page, "%s%d,%d,%llu,%u,%u,%u,%u", COMMA(i), s->tensor, step->moves[i].direction, (Long)step->moves[i].bytes,
                s->lo, s->hi, s->left, s->right);
    }
    fprintf(page, "],[");
    for (int i = 0; i < step->product_count; i++) {
        const Product *p = &step->products[i];
        fprintf(page, "%s%d,%d,%u,%u,%u,%u", COMMA(i), p->warp, p->keys.tensor, p->queries.lo, p->queries.hi, p->keys.lo,
                p->keys.hi);
    }
    fprintf(page, "],[");
    for (int i = 0; i < step->run_count; i++) {
        const Span *s = &step->runs[i].span;
        fprintf(page, "%s%d,%zu,%u,%u", COMMA(i), s->tensor, step->runs[i].bytes, s->lo, s->hi);
    }
    fprintf(page, "],%d,%.0f,%.0f,%d]", step->multiprocessor, step->start, step->cycles, step->busiest);
}

/* ---- the page ---- */

/* What a block mask keeps of each block, 0 nothing, 1 some pairs, 2 all: for each batch entry a line per query block. */
static void print_blocks(const Problem *p, const int *key_lengths) {
    fprintf(page, ",\"blocks\":\"");
    for (const char *c = p->blocks->text; *c; c++)
        fprintf(page, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    for (int b = 0; b < p->batch; b++)
        for (int row = 0; row < p->seqlen_q; row += MASK_BLOCK) {
            fprintf(page, "%s", row ? "\",\"" : b ? "\"],[\"" : "\",\"kept\":[[\"");
            for (int key = 0; key < p->seqlen_k; key += MASK_BLOCK)
                fprintf(page, "%d", tile_kept(&p->blocks->mask, p, key_length(p, key_lengths, b), row, row + MASK_BLOCK, key,
                                              smaller_of(key + MASK_BLOCK, p->seqlen_k)));
        }
    fprintf(page, "\"]]");
}

void trace_page_begin(const char *path, const char *stage, const Problem *p, const int *key_lengths, const char *chip_name) {
    const Chip *chip = find_chip(chip_name);
    page = fopen(page_path = path, "w");
    if (!page)
        cannot_run("--watch %s: cannot be written", path);
    variant_count = launch_count = work_count = 0;
    fprintf(page,
            "{\"stage\":\"%s\",\"problem\":{\"batch\":%d,\"heads\":%d,\"kv_heads\":%d,\"seqlen_q\":%d,\"seqlen_k\":%d,"
            "\"head_dim\":%d,\"dtype\":\"%s\",\"causal\":%d,\"key_lengths\":[",
            stage, p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, dtype_name(p->dtype), p->causal);
    for (int i = 0; i < p->batch; i++)
        fprintf(page, "%s%d", COMMA(i), key_length(p, key_lengths, i));
    fprintf(page, "]");
    if (p->blocks)
        print_blocks(p, key_lengths);
    fprintf(
        page,
        "},\n\"chip\":{\"name\":\"%s\",\"multiprocessors\":%d,\"ghz\":%g,\"gbps\":%g,\"tflops\":[%g,%g],\"fp32\":%d},\n\"variants\":[",
        chip->name, chip->multiprocessors, chip->ghz, chip->gbps, chip->tflops[0], chip->tflops[1], chip->fp32);
    page_problem = p;
}

void page_launch(const Launch *launch) {
    fprintf(page, launch_count++ ? "," : "%s\n{\"launches\":[", COMMA(variant_count));
    fprintf(page, "\n{\"kernel\":%d,\"file\":\"%s\",\"device\":%d,\"blocks\":%llu,\"steps\":[", launch->kernel, simt_job->file,
            simt_job->device, (Long)launch->blocks);
    for (int i = 0; i < launch->count; i++) {
        fprintf(page, "%s\n", COMMA(i));
        print_step(&launch->steps[i]);
    }
    fprintf(page, "]}");
}

void page_work(int kernel, const void *place, const char *what, uint64_t times) {
    Work *work = works, *end = work + work_count;
    while (work < end && (work->place != place || work->kernel != kernel || strcmp(work->what, what) != 0))
        work++;
    if (work == end) {
        works = host_resize(works, (size_t)work_count + 1, sizeof *works);
        work = &works[work_count++];
        *work = (Work){kernel, place, what, 0};
    }
    work->count += times;
}

void trace_page_variant(const char *name, const char *idea) {
    size_t count = (size_t)(trace_site_count + work_count);
    Site *places = host_alloc(count + 1, sizeof *places);
    SourceLine *lines = host_alloc(count + 1, sizeof *lines);
    memcpy(places, trace_sites, (size_t)trace_site_count * sizeof *places);
    for (int i = 0; i < work_count; i++)
        places[trace_site_count + i].place = works[i].place;
    source_lines(places, (int)count, lines);

    fprintf(page, "],\n\"name\":\"%s\",\"idea\":\"%s\",\"tensors\":[", name, idea);
    for (int i = 0; i < trace_tensor_count; i++)
        fprintf(page, "%s\"%s\"", COMMA(i), trace_tensors[i].memory.purpose);
    fprintf(page, "],\"sizes\":[");
    for (int i = 0; i < trace_tensor_count; i++)
        fprintf(page, "%s%zu", COMMA(i), trace_tensors[i].memory.bytes);
    fprintf(page, "],\"kernels\":[");
    for (int i = 0; i < trace_result.kernel_count; i++)
        print_kernel(i, lines);
    fprintf(page, "]}");
    variant_count++, launch_count = work_count = 0;
    free(lines);
    free(places);
}

void trace_page_end(void) {
    fprintf(page, "]}\n");
    page_problem = NULL;
    if (ferror(page) | fclose(page))
        cannot_run("--watch %s: cannot be written", page_path);
}
