/* records.c - see records.h. */
#include "records.h"

#include "../host/memory.h"
#include "row.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FA_COMMIT
#define FA_COMMIT "unknown"
#endif

/* A line while it is written. */
typedef struct {
    Format format;
    int is_heading; /* the names alone */
    int count;      /* of fields so far */
} Line;

/* What stands before a value. Returns whether the value is wanted. */
static int begins(Line *line, const char *name) {
    const char *between = line->count++ ? line->format == FORMAT_JSON ? ", " : "," : "";
    printf(line->format == FORMAT_JSON ? "%s\"%s\": " : line->is_heading ? "%s%s" : "%s", between, name);
    return !line->is_heading;
}

/* true, false or a number as it is; "": unknown. */
static void put_word(Line *line, const char *name, const char *word) {
    if (begins(line, name))
        printf("%s", !*word && line->format == FORMAT_JSON ? "null" : word);
}

static void put_number(Line *line, const char *name, double value) {
    char word[32] = "";
    if (isfinite(value)) /* JSON has no NaN and no infinity */
        snprintf(word, sizeof word, "%.15g", value);
    put_word(line, name, word);
}
static void put_number_if(int known, Line *line, const char *name, double value) {
    put_number(line, name, known ? value : NAN);
}

/* In CSV a quote inside a string comes twice; in JSON a control character becomes \u00xx. */
static void put_string(const char *text, Format format) {
    putchar('"');
    for (; *text; text++)
        if (format == FORMAT_CSV)
            printf(*text == '"' ? "\"\"" : "%c", *text);
        else if ((unsigned char)*text < ' ')
            printf("\\u%04x", *text);
        else
            printf(*text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    putchar('"');
}

static void put_text(Line *line, const char *name, const char *text) {
    if (!*text || (line->format == FORMAT_CSV && !strpbrk(text, ",\"\r\n")))
        put_word(line, name, text);
    else if (begins(line, name))
        put_string(text, line->format);
}

/* "33;20", a number for each batch entry, without the commas that part fields; "": every entry has all its keys. */
static void put_lengths(Line *line, const Run *run) {
    const int *lengths = run->options->key_lengths;
    char *text = host_alloc((size_t)run->p->batch, 11), *end = text; /* ten digits, and what stands before or behind them */
    for (int b = 0; lengths && b < run->p->batch; b++)
        end += sprintf(end, "%s%d", b ? ";" : "", lengths[b]);
    put_text(line, "lengths", text);
    free(text);
}

/* "format=e4m3;scaling=tensor": one field for what each stage has options of its own for, so that all stages have the same. */
static void put_settings(Line *line, const Run *run) {
    char *text = host_alloc(1, 1);
    for (int i = 0; run->stage->settings[i].name; i++) {
        const char *name = run->stage->settings[i].name, *value = setting_text(run, i);
        size_t used = strlen(text), more = strlen(name) + strlen(value) + 3;
        text = host_resize(text, used + more, 1);
        snprintf(text + used, more, "%s%s=%s", used ? ";" : "", name, value);
    }
    put_text(line, "settings", text);
    free(text);
}

/* The problem, the sample, what follows from it, the judgement, where it was: always the same fields in the same order. */
static void put_fields(Line *line, const Row *row) {
    const Run *run = row->run;
    const Problem *p = run->p;
    const Options *o = run->options;
    int ran = row_ran(row), known = ran && row->comparison_count > 0;
    double noise = row_noise(row);
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, o->seed);
    put_text(line, "stage", run->stage->name);
    put_text(line, "variant", row->name);
    put_text(line, "direction", passes_name(row->passes));
    put_number(line, "batch", p->batch);
    put_number(line, "heads", p->heads);
    put_number(line, "kv_heads", p->kv_heads);
    put_number(line, "seqlen_q", p->seqlen_q);
    put_number(line, "seqlen_k", p->seqlen_k);
    put_number(line, "head_dim", p->head_dim);
    put_text(line, "dtype", dtype_name(p->dtype));
    put_word(line, "causal", p->causal ? "true" : "false");
    put_lengths(line, run);
    put_number(line, "scale", p->scale);
    put_settings(line, run);
    put_text(line, "inputs", o->load ? o->load : o->outliers ? "outliers" : "normal");
    put_word(line, "seed", o->load ? "" : seed);
    put_text(line, "l2", o->warm ? "warm" : "cold");
    put_number_if(o->iters > 0, line, "iters", o->iters);
    put_number_if(ran, line, "runs", row->runs);
    put_number_if(ran, line, "latency_ms", row->latency_ms);
    put_number_if(ran, line, "min_ms", row->min_ms);
    put_number_if(ran && isfinite(noise), line, "iqr_ms", row->iqr_ms);
    put_word(line, "noisy", !ran || isnan(noise) ? "" : noise > NOISY ? "true" : "false");
    put_number_if(ran, line, "tflops", row_tflops(row));
    put_number_if(ran && p->blocks, line, "dense_tflops", row_dense_tflops(row));
    put_number_if(ran, line, "percent_of_peak", row_of_peak(row));
    put_number_if(ran, line, "gbps", row_gbps(row));
    put_number(line, "tensor_bytes", (double)row->tensor_bytes);
    put_number(line, "workspace_bytes", (double)row->workspace_bytes);
    put_number_if(ran, line, "gpu_bytes", row->gpu_bytes);
    put_number_if(ran, line, "gpu_flops_per_byte", row_intensity(row));
    put_number_if(run->bandwidth.read_gbps > 0, line, "read_gbps", run->bandwidth.read_gbps);
    put_number_if(run->bandwidth.copy_gbps > 0, line, "copy_gbps", run->bandwidth.copy_gbps);
    put_number_if(row_has_errors(row), line, "rmse", row->errors.rms);
    put_number_if(row_has_errors(row), line, "worst_fp64_error", row->errors.worst);
    put_number_if(known, line, "worst_error", row_worst(row)->error);
    put_number_if(known, line, "allowed_error", row_worst(row)->allowed);
    put_word(line, "ok", ran && !row_ok(row) ? "false" : !known || row_unchecked(row) ? "" : "true");
    put_text(line, "device", run->device->name);
    put_number_if(run->device->clock_mhz > 0, line, "clock_mhz", run->device->clock_mhz);
    put_text(line, "cuda", run->device->cuda_version);
    put_text(line, "commit", FA_COMMIT);
    put_text(line, "note", row_note(row));
}

void record_row(const Row *row) {
    Format format = row->run->options->format;
    printf("%s", format == FORMAT_JSON ? "{" : "");
    put_fields(&(Line){.format = format}, row);
    printf("%s\n", format == FORMAT_JSON ? "}" : "");
}

void csv_start(const Run *run) {
    put_fields(&(Line){.format = FORMAT_CSV, .is_heading = 1}, &(Row){.run = (Run *)run, .variant = run->reference});
    printf("\n");
}
