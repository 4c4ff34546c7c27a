/* trace_page.c - writes what the trace and trace_watch.c recorded as JSON, the data of watch.html. One object a program:
 *
 *     {"stage", "problem": {...}, "chip": {...}, "variants": [{"name", "tensors": [...], "kernels": [...], "launches": [...]}],
 *      "sources": {"split_q.cu": "text"}}
 *
 * A kernel has "sites" [[line, tensor, kind, requests, bytes, cost, ideal]] and "work" [[line, what, count, flops each]]. A
 * launch has "steps", in the order of blocks:
 *
 *     [block, flops, exponentials, wavefronts, barriers, accumulators,
 *      [tensor, direction, bytes, first row, last row, first column, last column, ...],       moves of device memory
 *      [warp, tensor of the keys, first query, last query, first key, last key, ...],         products
 *      [tensor (0: computed, -1: nothing yet), bytes, first row, last row, ...]]              shared memory; empty: as before
 *
 * Rows are counted through all heads, tensors are numbers in "tensors"; no rows: the first is after the last.
 */
#include "roofline.h"
#include "trace_watch.h"

#include "../host/allocation.h"
#include "../host/errors.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_SOURCES = 32 };
static FILE *page;
static const char *page_path;
static int variant_count;
static struct { char name[64], path[192]; } sources[MAX_SOURCES];
static int source_count;

static void print_text(const char *text, size_t length) {
    fputc('"', page);
    for (size_t i = 0; i < length; i++)
        if (text[i] == '"' || text[i] == '\\' || text[i] == '<' || (unsigned char)text[i] < ' ')
            fprintf(page, "\\u%04x", (unsigned)text[i]); /* '<': nothing in it ends the page's script */
        else
            fputc(text[i], page);
    fputc('"', page);
}

#define COMMA(i) ((i) ? "," : "")
typedef unsigned long long Long;

/* ---- sources: the files that a line "tile.cuh:86 in split_q.cu:117" names, from the kernel's folder or common/gpu ---- */

static void add_source(const char *frame, const char *kernel_file) {
    const char *slash = strrchr(kernel_file, '/');
    int length = (int)strcspn(frame, ":"), folder = slash ? (int)(slash - kernel_file) + 1 : 0;
    for (int i = 0; i < source_count; i++)
        if ((int)strlen(sources[i].name) == length && strncmp(sources[i].name, frame, (size_t)length) == 0)
            return;
    if (source_count == MAX_SOURCES || frame[length] != ':' || length >= (int)sizeof sources->name)
        return;
    snprintf(sources[source_count].name, sizeof sources->name, "%.*s", length, frame);
    char *path = sources[source_count].path;
    snprintf(path, sizeof sources->path, "%.*s%.*s", folder, kernel_file, length, frame);
    FILE *file = fopen(path, "r");
    if (!file)
        snprintf(path, sizeof sources->path, "common/gpu/%.*s", length, frame);
    else
        fclose(file);
    source_count++;
}

static void print_sources(void) {
    int printed = 0;
    fprintf(page, "\"sources\":{");
    for (int i = 0; i < source_count; i++) {
        FILE *file = fopen(sources[i].path, "r");
        if (!file)
            continue; /* not started from the repository's folder: the page has the numbers without the text */
        fseek(file, 0, SEEK_END);
        long size = ftell(file);
        rewind(file);
        char *text = host_alloc((size_t)size + 1, 1);
        size_t length = fread(text, 1, (size_t)size, file);
        fprintf(page, "%s\n\"%s\":", COMMA(printed++), sources[i].name);
        print_text(text, length);
        free(text);
        fclose(file);
    }
    fprintf(page, "}");
}

/* ---- kernels ---- */

static void print_line(const char *line, const char *kernel_file) {
    const char *in = strstr(line, " in ");
    add_source(line, kernel_file);
    if (in)
        add_source(in + 4, kernel_file);
    print_text(line, strlen(line));
}

static void print_kernel(int number, const SourceLine *lines) {
    const TraceKernel *kernel = &trace_result.kernels[number];
    const SiteCount *sites = result_sites(number);
    const char *file = watch_record.files[number];
    int printed = 0;
    fprintf(page, "%s\n{\"name\":\"%s\",\"file\":\"%s\",\"blocks\":%llu,\"threads\":%llu,\"shared\":%llu,\"sites\":[",
            COMMA(number), kernel->name, file, (Long)kernel->blocks, (Long)kernel->threads, (Long)kernel->shared_bytes);
    for (int i = 0; i < trace_site_count; i++) {
        if (!sites[i].requests)
            continue;
        fprintf(page, "%s[", COMMA(printed++));
        print_line(lines[i], file);
        fprintf(page, ",%d,%d,%llu,%llu,%llu,%llu]", trace_sites[i].tensor, trace_sites[i].kind, (Long)sites[i].requests,
                (Long)sites[i].bytes, (Long)sites[i].cost, (Long)sites[i].ideal);
    }
    fprintf(page, "],\"work\":[");
    printed = 0;
    for (int i = 0; i < watch_record.work_count; i++) {
        const Work *work = &watch_record.works[i];
        if (work->kernel != number)
            continue;
        fprintf(page, "%s[", COMMA(printed++));
        print_line(lines[trace_site_count + i], file);
        fprintf(page, ",\"%s\",%llu,%u]", work->what, (Long)work->count, result_flops(work->what));
    }
    fprintf(page, "]}");
}

static void print_step(const Step *step) {
    fprintf(page, "[%u,%llu,%llu,%llu,%llu,%d,[", step->block, (Long)step->flops, (Long)step->exponentials,
            (Long)step->wavefronts, (Long)step->barriers, step->accumulators);
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
    fprintf(page, "]]");
}

/* ---- the page ---- */

void trace_page_begin(const char *path, const char *stage, const Problem *p, const int *key_lengths, const char *chip_name) {
    const Chip *chip = find_chip(chip_name);
    page = fopen(page_path = path, "w");
    if (!page)
        cannot_run("--watch %s: cannot be written", path);
    variant_count = source_count = 0;
    fprintf(page,
            "{\"stage\":\"%s\",\"problem\":{\"batch\":%d,\"heads\":%d,\"kv_heads\":%d,\"seqlen_q\":%d,\"seqlen_k\":%d,"
            "\"head_dim\":%d,\"dtype\":\"%s\",\"causal\":%d,\"key_lengths\":[",
            stage, p->batch, p->heads, p->kv_heads, p->seqlen_q, p->seqlen_k, p->head_dim, dtype_name(p->dtype), p->causal);
    for (int i = 0; i < p->batch; i++)
        fprintf(page, "%s%d", COMMA(i), key_length(p, key_lengths, i));
    fprintf(
        page,
        "]},\n\"chip\":{\"name\":\"%s\",\"multiprocessors\":%d,\"ghz\":%g,\"gbps\":%g,\"tflops\":[%g,%g]},\n\"variants\":[",
        chip->name, chip->multiprocessors, chip->ghz, chip->gbps, chip->tflops[0], chip->tflops[1]);
    watch_problem(p);
}

void trace_page_variant(const char *name) {
    const WatchRecord *record = &watch_record;
    int count = trace_site_count + record->work_count;
    Site *places = host_alloc((size_t)count + 1, sizeof *places);
    SourceLine *lines = host_alloc((size_t)count + 1, sizeof *lines);
    memcpy(places, trace_sites, (size_t)trace_site_count * sizeof *places);
    for (int i = 0; i < record->work_count; i++)
        places[trace_site_count + i].place = record->works[i].place;
    source_lines(places, count, lines);

    fprintf(page, "%s\n{\"name\":\"%s\",\"tensors\":[", COMMA(variant_count++), name);
    for (int i = 0; i < trace_tensor_count; i++)
        fprintf(page, "%s\"%s\"", COMMA(i), trace_tensors[i].name);
    fprintf(page, "],\"kernels\":[");
    for (int i = 0; i < trace_result.kernel_count; i++)
        print_kernel(i, lines);
    fprintf(page, "],\n\"launches\":[");
    for (int i = 0; i < record->launch_count; i++) {
        const Launch *launch = &record->launches[i];
        fprintf(page, "%s\n{\"kernel\":%d,\"blocks\":%llu,\"merged_steps\":%d,\"merged_blocks\":%d,\"steps\":[", COMMA(i),
                launch->kernel, (Long)launch->blocks, launch->merged_steps, launch->merged_blocks);
        for (int k = 0; k < launch->count; k++) {
            fprintf(page, "%s\n", COMMA(k));
            print_step(&launch->steps[k]);
        }
        fprintf(page, "]}");
    }
    fprintf(page, "]}");
    free(lines);
    free(places);
}

void trace_page_end(void) {
    fprintf(page, "],\n");
    print_sources();
    fprintf(page, "}\n");
    watch_problem(NULL);
    if (ferror(page) | fclose(page))
        cannot_run("--watch %s: cannot be written", page_path);
}
