/* records.c - CSV and JSON rows: the same fields in both. See records.h. */
#include "records.h"

#include <stdio.h>
#include <string.h>

#ifndef FA_COMMIT
#define FA_COMMIT "unknown"
#endif

typedef struct {
    const char *name;
    int quoted;     /* a string in JSON */
    char text[192]; /* empty: null */
} Field;

enum { MAX_FIELDS = 40 };

static void add(Field *fields, int *count, const char *name, const char *text, int quoted) {
    Field *field = &fields[(*count)++];
    field->name = name;
    field->quoted = quoted;
    snprintf(field->text, sizeof field->text, "%s", text);
}

static void add_number(Field *fields, int *count, const char *name, double value, int known) {
    char text[32] = "";
    if (known && isfinite(value)) /* JSON has no NaN and no infinity */
        snprintf(text, sizeof text, "%.15g", value);
    add(fields, count, name, text, 0);
}

static int make_fields(const Report *r, const Row *row, Field f[MAX_FIELDS]) {
    const Problem *p = r->problem;
    int n = 0, ran = row_ran(row), known = ran && row->validated;
    char note[sizeof row->note];
    row_note(row, note, sizeof note);
    add(f, &n, "stage", r->stage->name, 1);
    add(f, &n, "variant", row->name, 1);
    add(f, &n, "direction", directions[row->direction].name, 1);
    add_number(f, &n, "batch", p->batch, 1);
    add_number(f, &n, "heads", p->heads, 1);
    add_number(f, &n, "kv_heads", p->kv_heads, 1);
    add_number(f, &n, "seqlen_q", p->seqlen_q, 1);
    add_number(f, &n, "seqlen_k", p->seqlen_k, 1);
    add_number(f, &n, "head_dim", p->head_dim, 1);
    add(f, &n, "dtype", dtype_name(p->dtype), 1);
    add(f, &n, "causal", p->causal ? "true" : "false", 0);
    add_number(f, &n, "latency_ms", row->latency_ms, ran);
    add_number(f, &n, "min_ms", row->min_ms, ran);
    add_number(f, &n, "tflops", row_tflops(r, row), ran);
    add_number(f, &n, "gbps", row_gbps(r, row), ran);
    add_number(f, &n, "tensor_bytes", (double)row->tensor_bytes, 1);
    add_number(f, &n, "workspace_bytes", (double)row->workspace_bytes, 1);
    add_number(f, &n, "read_gbps", r->bandwidth.read_gbps, r->bandwidth.read_gbps > 0);
    add_number(f, &n, "copy_gbps", r->bandwidth.copy_gbps, r->bandwidth.copy_gbps > 0);
    add_number(f, &n, "rmse", row->errors.rms, row->errors_known);
    add_number(f, &n, "worst_fp64_error", row->errors.worst, row->errors_known);
    add_number(f, &n, "worst_error", row_worst(row)->error, known);
    add_number(f, &n, "allowed_error", row_worst(row)->allowed, known);
    add(f, &n, "ok", ran && !row_ok(row) ? "false" : !known || row_unchecked(row) ? "" : "true", 0);
    for (int i = 0; i < MAX_SETTINGS && r->stage->settings[i].name; i++) {
        char value[32];
        setting_text(&r->stage->settings[i], p->settings[i], value, sizeof value);
        add(f, &n, r->stage->settings[i].name, value, 1);
    }
    add(f, &n, "inputs", r->options->load ? r->options->load : r->options->outliers ? "outliers" : "normal", 1);
    add(f, &n, "l2", r->options->warm ? "warm" : "cold", 1);
    add(f, &n, "device", r->device->name, 1);
    add_number(f, &n, "clock_mhz", r->device->clock_mhz, r->device->clock_mhz > 0);
    add(f, &n, "cuda", r->device->cuda_version, 1);
    add(f, &n, "commit", FA_COMMIT, 1);
    add(f, &n, "note", note, 1);
    return n;
}

/* CSV puts a quote inside a string twice, JSON after a backslash. */
static void print_quoted(const char *text, Format format) {
    putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar(format == FORMAT_CSV ? '"' : '\\');
        if (*text == '\\' && format == FORMAT_JSON)
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

void record_row(const Report *r, const Row *row) {
    Field fields[MAX_FIELDS];
    int count = make_fields(r, row, fields);
    for (int i = 0; i < count; i++) {
        const Field *f = &fields[i];
        if (r->options->format == FORMAT_JSON)
            printf("%s\"%s\": ", i ? ", " : "{", f->name);
        else if (i)
            printf(",");
        if (*f->text && (r->options->format == FORMAT_JSON ? f->quoted : strpbrk(f->text, ",\"") != NULL))
            print_quoted(f->text, r->options->format);
        else
            printf("%s", *f->text ? f->text : r->options->format == FORMAT_JSON ? "null" : "");
    }
    printf("%s\n", r->options->format == FORMAT_JSON ? "}" : "");
}

void csv_start(const Report *r) {
    Field fields[MAX_FIELDS];
    Row any = {.name = ""};
    int count = make_fields(r, &any, fields);
    for (int i = 0; i < count; i++)
        printf("%s%s", i ? "," : "", fields[i].name);
    printf("\n");
}
